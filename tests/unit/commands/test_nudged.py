"""Weights that are nudged in their last places."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from one_process import fit, losses
from safetensors.torch import load_file

from trainer import TrainConfig
from trainer.commands.nudged import NUDGED as NUDGED_FOLDER
from trainer.commands.nudged import UNITS, FirstWeights, is_nudged
from trainer.commands.runs import read_run
from trainer.config.load import Loaded


@pytest.mark.usefixtures("fresh_accelerate")
def test_nudged_weights_are_some_units_off_and_start_a_run(tmp_path: Path) -> None:
    loaded = Loaded(config=TrainConfig(task="resuming:Odd", max_steps=2), origins={})
    first = FirstWeights.of(loaded)
    for seed in (1, 2):
        first.write_nudged(tmp_path / f"{NUDGED_FOLDER}{seed}", seed)
    one, two = (
        load_file(tmp_path / f"{NUDGED_FOLDER}{seed}" / "model.safetensors") for seed in (1, 2)
    )
    for name in first.parameters.keys() & one.keys():
        value = first.parameters[name]
        if not first.tensors[name].requires_grad:
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
