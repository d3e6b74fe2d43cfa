"""A tracked run without training, in which processes of the tests of W&B log steps."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trainer.callbacks.tracking import Tracking
from trainer.config.train_config import TrainConfig
from trainer.errors import Origin, TrainerError
from trainer.reporting.directory import RunDirectory

SECRET = "0123456789abcdef0123456789abcdef01234567"


def trained(path: Path, steps: range, *, end: bool = True) -> None:
    """Call ``Tracking`` as the trainer does, at each of ``steps`` and, with ``end``, at the end."""
    from accelerate import Accelerator

    directory = RunDirectory(str(path), main=True)
    path.mkdir(exist_ok=True)
    plan = SimpleNamespace(strategy="ddp", world_size=2, mixed_precision="no", device="cpu")
    config = TrainConfig(
        task="a:Task", max_steps=9, task_settings={"hub_token": SECRET}, trackers=["wandb"]
    )
    trainer: Any = SimpleNamespace(
        is_main=True,
        name="Task-ddp-2",
        evaluation_sets={"clean": SimpleNamespace(prefix="eval/clean/")},
        directory=directory,
        plan=plan,
        config=config,
        meter=SimpleNamespace(paused=lambda name: contextlib.nullcontext()),
        say=print,
        accelerator=Accelerator(cpu=True),
        facts={"strategy": "ddp", "deepspeed": {"api_key": SECRET}},
        step=steps[-1],
    )

    tracking = Tracking(["wandb"], origin=Origin("here"))
    for step in steps:
        info: Any = SimpleNamespace(
            step=step,
            epoch=0.1 * step,
            samples=8 * step,
            metrics={"step": step, "loss": 1 / step},
            evaluation=None,
        )
        tracking.on_step(trainer, info)
    if end:
        tracking.on_end(trainer, {"peak_memory_bytes": [1], "seconds": {"wall": 1.0}})


def fail(path: Path, steps: range) -> None:
    """Log steps, and fail before the end of the run."""
    trained(path, steps, end=False)
    raise TrainerError("loss is nan")
