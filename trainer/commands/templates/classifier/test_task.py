"""Two real processes on the CPU, connected by a real launcher: pytest test_task.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_task_trains_on_two_processes(strategy: str, tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    launch += ["--config_file", f"accel_configs/{strategy}.yaml", "-m", "trainer", "train"]
    settings = ["max_steps=10", "log_every=1", f"output_dir={tmp_path}"]
    subprocess.run([*launch, "--config", "train.yaml", *settings], cwd=HERE, check=True)

    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["strategy"], plan["world_size"]) == (strategy, 2)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 10
    assert losses[-1] < losses[0]
    assert (tmp_path / "model" / "model.safetensors").is_file()
