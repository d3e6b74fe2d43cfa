"""Two real processes on the CPU, connected by a real launcher: pytest test_task.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_task_trains_on_two_processes(strategy: str, tmp_path: Path) -> None:
    launch = f"--main_process_port 0 --config_file accel_configs/{strategy}.yaml -m trainer train"
    settings = f"--config train.yaml --max_steps 10 --output_dir {tmp_path}"
    words = f"{sys.executable} -m accelerate.commands.launch {launch} {settings}"
    subprocess.run(words.split(), cwd=Path(__file__).parent, check=True)

    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["strategy"], plan["world_size"]) == (strategy, 2)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["evaluation"]["eval/loss"] < 1.7, "a guess has log(6) = 1.79"
