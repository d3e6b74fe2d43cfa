"""Two real processes, connected by a real launcher, on the CPU: pytest test_task.py (some 10 s a
strategy).
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WITH_DEEPSPEED = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="pip install 'samecurve[deepspeed]'"
)
STRATEGIES = [
    "ddp",
    "fsdp",
    *(pytest.param(name, marks=WITH_DEEPSPEED) for name in ("zero1", "zero2", "zero3")),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_task_trains_on_two_processes(strategy: str, tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    launch += ["--config_file", f"accel_configs/{strategy}.yaml", "-m", "trainer", "train"]
    settings = [
        "--config",
        "train.yaml",
        "--max_steps",
        "10",
        "--log_every",
        "1",
        "--output_dir",
        str(tmp_path),
    ]
    subprocess.run([*launch, *settings], cwd=HERE, check=True)
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["strategy"], plan["world_size"]) == (strategy, 2), "what ran is what was asked for"
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert len(losses) == 10 and losses[-1] < losses[0]
    assert (tmp_path / "model" / "model.safetensors").is_file()
