"""Started by Accelerate's own launcher: a small training."""

from __future__ import annotations

import os
from pathlib import Path

from brought_tasks import Plain

from trainer import TrainConfig, Trainer


def configured(folder: Path) -> TrainConfig:
    return TrainConfig(task="brought_tasks:Plain", output_dir=str(folder), max_steps=2, log_every=1)


def work(folder: str) -> None:
    run = Trainer(Plain(), configured(Path(folder)))
    run.fit()
    assert run.run.accelerator.num_processes == 2
    Path(f"{folder}-{os.environ['RANK']}").write_text(type(run.run.model).__name__)
