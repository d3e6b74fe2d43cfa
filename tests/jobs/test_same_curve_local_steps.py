"""FSDP2's step on rows as ordinary tensors: losses, weights and state are those of the step on
DTensors, to the bit, and checkpoints of both are the same.

| promised | strategies and worlds | tests |
|---|---|---|
| The step on rows has the bits of the step on DTensors, and each resumes from the other | FSDP2 on 2; on 3 (nightly) | test_steps_on_rows_are_steps_on_distributed_tensors |
"""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import json_in, launch_file, worked


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_steps_on_rows_are_steps_on_distributed_tensors(world: int, tmp_path: Path) -> None:
    config = launch_file(tmp_path / "accel.yaml", "fsdp", world)
    worked(["tests/workers/local_steps.py", config, tmp_path], world)
    for rank in range(world):
        equal = json_in(tmp_path / f"equal-{rank}.json")
        assert len(equal) == 6 and all(equal.values()), equal
