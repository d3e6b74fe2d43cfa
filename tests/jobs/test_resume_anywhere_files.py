"""A checkpoint is whole, and its errors are the same on every rank.

| promised | strategies and worlds | tests |
|---|---|---|
| The parts of all ranks tile the model, once | all on 2 and 3 | test_shards_tile_the_model |
| A checkpoint that cannot be written or read is the same error on every rank | FSDP2 on 2; others on 2 (nightly) | test_every_rank_says_the_same |
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launchers import STRATEGIES, launch_file, ranks


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("world", [2, 3])
def test_shards_tile_the_model(strategy: str, world: int, tmp_path: Path) -> None:
    config = launch_file(tmp_path / "accel.yaml", strategy, world)
    done = ranks(["tests/workers/shards.py", config, tmp_path / "model"], world)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    assert f"tiles: {strategy} {world}" in done.stdout


OTHERS = [
    pytest.param(strategy, marks=pytest.mark.slow)
    for strategy in ("ddp", "zero1", "zero2", "zero3")
]


@pytest.mark.parametrize("strategy", ["fsdp", *OTHERS])
def test_every_rank_says_the_same(strategy: str, tmp_path: Path) -> None:
    done = ranks(["tests/workers/checkpoint_errors.py", f"accel_configs/{strategy}.yaml", tmp_path])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    said, second = (json.loads((tmp_path / f"results-{rank}.json").read_text()) for rank in (0, 1))
    assert said == second

    lost, kept = said["lost"]
    assert lost.startswith(
        "TrainerError: step 3: the loss on rank 1 is nan, of samples "
    ) and kept == [2]
    could_not = "CheckpointError: Holds.value: {1} is neither JSON nor a tensor"
    assert said["state"].startswith(could_not)
    for name in ("thawed", "frozen", "other"):
        assert said[name] == [[], "", [4]], name
    assert said["ends"].startswith(
        "ConfigError: resume: max_steps: 1: ends the run at step 1, and "
    )
    assert said["finished"] == 2
    line, kept = said["blind"]
    assert (
        "step-00000004: cannot be read on rank 1: " in line
        and " is missing there, and whole for the main" in line
    )
    assert kept == [4, 2], "nothing is renamed"
    assert (
        said["wrong"] == ["", [2]]
        and (tmp_path / "seen" / "checkpoints" / "step-00000004.damaged").is_dir()
    )
    assert said["groups"], "the same bytes"
    assert (
        said["export"].startswith("CheckpointError: the model could not be written to ")
        and said["exported"]
    )
