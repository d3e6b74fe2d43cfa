"""``trainer compare --launch``: trainings one after the other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from comparison_page import data_of
from launchers import BIN, ROOT, clean_environment


@pytest.mark.slow
def test_launch_keeps_going_where_a_training_fails(tmp_path: Path) -> None:
    """The task fails on rank 1, so under DDP and not in one process. No script: the config names
    the task.
    """
    files = ["accel_configs/ddp.yaml", "accel_configs/single.yaml"]
    config = [
        "--config",
        "examples/configs/digits_cnn.yaml",
        "--task",
        "tests.workers.failing:FailsOnOneRank",
    ]
    length = [
        "--max_steps",
        "4",
        "--warmup_steps",
        "1",
        "--log_every",
        "1",
        "--micro_batch_size",
        "16",
    ]
    words = [
        str(BIN / "trainer"),
        "compare",
        "--launch",
        *files,
        *config,
        *length,
        "--output",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(
        words, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"ddp: RuntimeError: the cat sat on rank 1 ({tmp_path}/out/ddp.log)" in done.stderr
    told = data_of((tmp_path / "out" / "compare.html").read_text())
    assert [(run["name"], run["steps"]) for run in told["runs"]] == [("ddp", 0), ("single", 4)]
    assert told["groups"][0]["runs"] == ["single"]
