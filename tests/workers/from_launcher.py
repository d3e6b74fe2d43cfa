"""The config of a training of two steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer import TrainConfig


def configured(folder: Path, **settings: Any) -> TrainConfig:
    given = {"task": "brought_tasks:Plain", "max_steps": 2, "log_every": 1, **settings}
    return TrainConfig(output_dir=str(folder), **given)
