"""The config of a training of two steps."""

from __future__ import annotations

from pathlib import Path

from trainer import TrainConfig


def configured(folder: Path) -> TrainConfig:
    return TrainConfig(task="brought_tasks:Plain", output_dir=str(folder), max_steps=2, log_every=1)
