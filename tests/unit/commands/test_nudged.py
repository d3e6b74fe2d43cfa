"""Weights that are nudged in their last places."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from one_process import fit, losses
from safetensors.torch import load_file

from trainer import TrainConfig
from trainer.commands.nudged import NUDGED as NUDGED_FOLDER
from trainer.commands.nudged import UNITS, first_weights, is_nudged, write_nudged
from trainer.commands.runs import read_run
from trainer.config.load import Loaded


@pytest.mark.usefixtures("fresh_accelerate")
def test_nudged_weights_are_some_units_off_and_start_a_run(tmp_path: Path) -> None:
    loaded = Loaded(config=TrainConfig(task="resuming:Odd", max_steps=2), origins={})
    file, first = first_weights(loaded)
    files = [tmp_path / f"{NUDGED_FOLDER}{seed}" / file for seed in (1, 2)]
    for seed, path in enumerate(files):
        write_nudged(first, path, seed)
    one, two = map(load_file, files)
    for name in first.keys() & one.keys():
        value = first[name].detach()
        if not first[name].requires_grad:
            assert torch.equal(one[name], value)
            continue
        off = (one[name] - value) / (value.nextafter(torch.tensor(torch.inf)) - value)
        assert off.abs().max() <= 2 * UNITS and (off.abs() >= UNITS / 2).float().mean() > 0.9
        assert not torch.equal(one[name], two[name]) or value.numel() < 8
    trainer = fit(tmp_path / "run", weights=str(tmp_path / f"{NUDGED_FOLDER}1"), max_steps=1)
    plain = fit(tmp_path / "plain", max_steps=1)
    [loss], [usual] = losses(trainer.directory.path).values(), losses(plain.directory.path).values()
    assert loss == pytest.approx(usual, rel=1e-4) and is_nudged(read_run(trainer.directory.path))
    assert not is_nudged(read_run(plain.directory.path))
