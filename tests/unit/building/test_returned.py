"""A wrong result of a task's method is one line that names the method and the result."""

from __future__ import annotations

from typing import Any

import pytest

from trainer import Data, LaunchError, Task
from trainer.building.returned import returned


class Mine(Task):
    pass


@pytest.mark.parametrize(
    ("value", "said"), [(None, "a NoneType"), (([1], [2]), "a tuple"), ({}, "a dict")]
)
def test_a_wrong_result_is_one_line(value: Any, said: str) -> None:
    data = Data(train=[1])
    assert returned(data, Data, Mine(), "build_data") is data
    with pytest.raises(LaunchError) as caught:
        returned(value, Data, Mine(), "build_data")
    assert str(caught.value) == f"Mine.build_data must return: Data. It returned {said}"
