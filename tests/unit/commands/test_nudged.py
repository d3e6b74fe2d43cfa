"""Weights that are nudged in their last places."""

from __future__ import annotations

from pathlib import Path

import torch
from one_process import fit
from safetensors.torch import load_file

from trainer.commands.nudged import FIRST, LAST, NUDGE, Weights


def test_nudged_weights_are_a_little_off_and_start_a_run(tmp_path: Path) -> None:
    """Seed 0 changes nothing."""
    for seed in (0, 1):
        fit(tmp_path / str(seed), None, Weights(seed), max_steps=1, export_dtype="float32")
    first, last, nudged = (
        load_file(tmp_path / name) for name in (f"0/{FIRST}", f"0/{LAST}", f"1/{FIRST}")
    )
    for name, value in first.items():
        off = ((nudged[name] - value) / value)[value != 0].abs()
        assert 0.1 * NUDGE < off.mean() < 2 * NUDGE and off.max() < 6 * NUDGE, name
    exported = load_file(tmp_path / "0/model/model.safetensors")
    assert all(torch.equal(exported[name], value) for name, value in last.items())
    trained = load_file(tmp_path / f"1/{LAST}")
    assert all(not torch.equal(trained[name], value) for name, value in last.items())
