"""A wrong result of a task's method is one line that names the method and the result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trainer import Data, DataError, LaunchError, Task
from trainer.building.returned import data_of, model_of, optimizer_by


class Mine(Task):
    """Returns what it is told, as a plain class that is no dataclass can."""

    returned: Any = None

    def build_data(self) -> Any:
        return self.returned

    def build_model(self) -> Any:
        return self.returned

    def build_optimizer(self, model: nn.Module, plan: Any) -> Any:
        return self.returned


def mine(value: Any) -> Task:
    return type("Mine", (Mine,), {"returned": value})()


def test_what_is_right_is_passed_on() -> None:
    data, model = Data(train=[1]), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    assert (data_of(mine(data)), model_of(mine(model))) == (data, model)
    assert optimizer_by(mine(optimizer), model, None) is optimizer  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "said"), [(None, "None"), (([1], [2]), "a tuple of (list, list)"), ({}, "a dict")]
)
def test_what_is_wrong_is_one_line(value: Any, said: str) -> None:
    for error, ask, line in (
        (DataError, data_of, "Mine.build_data must return: Data"),
        (LaunchError, model_of, "Mine.build_model must return: Module"),
        (
            LaunchError,
            lambda task: optimizer_by(task, nn.Linear(1, 1), None),
            "Mine.build_optimizer must return: Optimizer",
        ),
    ):
        with pytest.raises(error) as caught:
            ask(mine(value))  # type: ignore[no-untyped-call]
        assert str(caught.value).startswith(line) and str(caught.value).endswith(
            f"; it returned {said}"
        )
