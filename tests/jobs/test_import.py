"""Weights of checkpoints that Accelerate wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from launchers import launch_file, ranks
from resuming import Model
from safetensors.torch import load_file

from trainer import load_export
from trainer.commands import cli


@pytest.mark.parametrize(("strategy", "world"), [("fsdp", 2), ("zero2", 2), ("zero3", 3)])
def test_weights_of_accelerates_checkpoints(strategy: str, world: int, tmp_path: Path) -> None:
    config = launch_file(tmp_path / "accel.yaml", strategy, world)
    done = ranks(["tests/workers/foreign_checkpoint.py", config, tmp_path, str(world)], world)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    # torch.distributed keeps a shared tensor under both of its names.
    drop = ["--drop", "head.weight"] if strategy == "fsdp" else []
    assert (
        cli.main(["import", str(tmp_path / "theirs"), "--to", str(tmp_path / "imported"), *drop])
        == 0
    )
    ours, theirs = (
        load_file(tmp_path / name / "model.safetensors") for name in ("ours", "imported")
    )
    assert set(ours) == set(theirs)
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
    model = Model(0.0)
    load_export(model, tmp_path / "imported")
    assert torch.equal(model.head.weight, ours["embedding.weight"])
