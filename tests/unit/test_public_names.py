"""Names that ``import trainer`` offers."""

from __future__ import annotations

import pytest

import trainer
from trainer.distributed.exit import run_and_exit


def test_public_name_of_the_release_before_works_with_a_warning() -> None:
    old = "run"
    with pytest.warns(DeprecationWarning, match=r"^trainer\.run is called trainer\.run_and_exit now$"):
        assert getattr(trainer, old) is run_and_exit
    assert old not in trainer.__all__
