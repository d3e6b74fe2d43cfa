"""Start one run of a W&B sweep as ``wandb agent`` does, without its server.

    python wandb_agent.py SWEEP.yaml RUN_ID '{"lr": 0.003}'

W&B's own agent fills in the command and its variables; only what the server would choose is given.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml
from wandb.wandb_agent import Agent


def start(sweep: dict[str, Any], run_id: str, settings: dict[str, Any]) -> int:
    """Run the command of a sweep with these settings; return its exit code."""
    os.environ["WANDB_SWEEP_ID"] = "sweep123"  # as run_agent sets it
    os.environ["WANDB_PROJECT"] = "of-the-sweep"
    agent = Agent(api=None, queue=None, sweep_id="sweep123")
    agent._sweep_command = sweep["command"]
    arguments = {name: {"value": value} for name, value in settings.items()}
    agent._command_run({"run_id": run_id, "program": sweep["program"], "args": arguments})
    [process] = agent._run_processes.values()
    return int(process.wait())


if __name__ == "__main__":
    sys.exit(
        start(yaml.safe_load(Path(sys.argv[1]).read_text()), sys.argv[2], json.loads(sys.argv[3]))
    )
