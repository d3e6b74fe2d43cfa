"""The errors of a checkpoint are the same on every rank.

| promised | strategies and worlds | tests |
|---|---|---|
| A checkpoint that cannot be written or read is the same error on every rank | FSDP2 on 2; others on 2 (nightly) | test_every_rank_says_the_same |
"""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import json_in, some_quick, worked


@pytest.mark.parametrize("strategy", some_quick("fsdp"))
def test_every_rank_says_the_same(strategy: str, tmp_path: Path) -> None:
    worked(["tests/workers/checkpoint_errors.py", f"accel_configs/{strategy}.yaml", tmp_path])
    said, second = (json_in(tmp_path / f"results-{rank}.json") for rank in (0, 1))
    assert said == second

    could_not = "CheckpointError: state.callbacks.Holds.value: {1} is neither JSON nor a tensor"
    assert said["state"].startswith(could_not)
    for name in ("thawed", "frozen", "other"):
        assert said[name] == [[], "", [4]], name
    assert said["ends"].startswith(
        "ConfigError: resume: max_steps: 1: ends the run at step 1, and "
    )
    line, kept = said["blind"]
    assert (
        "step-00000004: cannot be read on rank 1: " in line
        and " is missing there, and whole for the main" in line
    )
    assert kept == [4, 2], "nothing is renamed"
    assert (
        said["wrong"] == ["", [2]]
        and (tmp_path / "seen/checkpoints/step-00000004.damaged").is_dir()
    )
    assert (
        said["export"].startswith("CheckpointError: the model could not be written to ")
        and said["exported"]
    )
