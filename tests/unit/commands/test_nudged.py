"""Weights that are nudged in their last places."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from one_process import fit, losses
from safetensors.torch import load_file

from trainer import TrainConfig
from trainer.commands.nudged import NUDGE, first_weights, write_nudged
from trainer.config.load import Loaded


@pytest.mark.usefixtures("fresh_accelerate")
def test_nudged_weights_are_a_little_off_and_start_a_run(tmp_path: Path) -> None:
    loaded = Loaded(config=TrainConfig(task="resuming:Odd", max_steps=2), origins={})
    file, first = first_weights(loaded)
    files = [tmp_path / str(seed) / file for seed in (1, 2)]
    for seed, path in enumerate(files):
        write_nudged(first, path, seed)
    one, two = map(load_file, files)
    assert one.keys() == first.keys()
    for name, tensor in first.items():
        value = tensor.detach()
        if not tensor.requires_grad:
            assert torch.equal(one[name], value)
            continue
        off = ((one[name] - value) / value)[value != 0].abs()
        assert 0.1 * NUDGE < off.mean() < 2 * NUDGE and off.max() < 6 * NUDGE, name
        assert not torch.equal(one[name], two[name]) or value.numel() < 8
    trainer = fit(tmp_path / "run", weights=str(files[0].parent), max_steps=1)
    plain = fit(tmp_path / "plain", max_steps=1)
    [loss], [usual] = losses(trainer.directory.path).values(), losses(plain.directory.path).values()
    assert loss == pytest.approx(usual, rel=1e-4) and loss != usual
