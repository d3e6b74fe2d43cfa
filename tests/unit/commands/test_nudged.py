"""Weights that are nudged in their last places."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from one_process import fit, losses
from safetensors.torch import load_file

from trainer.commands.nudged import FIRST, LAST, NUDGE, Weights


@pytest.mark.usefixtures("fresh_accelerate")
def test_nudged_weights_are_a_little_off_and_start_a_run(tmp_path: Path) -> None:
    """A nudge changes the trainable weights alone. Seed 0 changes nothing."""
    runs = [
        fit(tmp_path / str(seed), None, Weights(seed), max_steps=1, export_dtype="float32")
        for seed in (0, 1, 2)
    ]
    trainable = {name for name, _ in runs[0].strategy.parameters()}
    first, one, two = (load_file(run.directory.path / FIRST) for run in runs)
    assert first.keys() == one.keys() == two.keys() == trainable
    for name, value in first.items():
        off = ((one[name] - value) / value)[value != 0].abs()
        assert 0.1 * NUDGE < off.mean() < 2 * NUDGE and off.max() < 6 * NUDGE, name
        assert not torch.equal(one[name], two[name]) or value.numel() < 8

    exported, nudged = (
        load_file(run.directory.path / "model/model.safetensors") for run in runs[:2]
    )
    last = load_file(runs[0].directory.path / LAST)
    assert all(torch.equal(last[name], exported[name]) for name in trainable)
    rest = exported.keys() - trainable
    assert rest and all(torch.equal(exported[name], nudged[name]) for name in rest)

    plain = fit(tmp_path / "plain", max_steps=1)
    usual, same, loss, _ = (losses(run.directory.path)[1] for run in (plain, *runs))
    assert same == usual
    assert loss == pytest.approx(usual, rel=1e-4) and loss != usual
