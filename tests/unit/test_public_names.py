"""Names that ``import trainer`` offers."""

from __future__ import annotations

import pytest

import trainer
from trainer.distributed.exit import run_and_exit


def test_public_name_of_the_release_before_works_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match=r"^trainer\.run is called trainer\.run_and_exit now$"):
        assert trainer.run is run_and_exit
    assert "run" not in trainer.__all__
