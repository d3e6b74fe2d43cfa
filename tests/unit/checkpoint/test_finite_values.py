"""Values that a checkpoint may hold. ``test_export.py`` has those that are refused."""

from __future__ import annotations

from pathlib import Path

from one_process import fit
from resuming import Odd

from trainer.checkpoint.finite_values import not_finite


def test_large_values_and_infinite_ones_of_frozen_layers_are_no_error(tmp_path: Path) -> None:
    trainer = fit(tmp_path, Odd(), max_steps=2, ema_decay=0.9)
    for parameter in trainer.model.parameters():
        parameter.data.fill_(3e38)  # the sum of two such values is infinite
    trainer.model.frozen.weight.data[0, 0] = float("inf")  # as a mask may be
    assert not_finite(trainer.parts) == ""
