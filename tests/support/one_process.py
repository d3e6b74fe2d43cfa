"""Trainings of one process, in this one, and what they leave."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from launchers import json_in, json_lines
from resuming import Odd

from trainer import Callback, Run, Task, TrainConfig, Trainer
from trainer.checkpoint import discover, store


def fit(folder: Path, task: Task | None = None, *callbacks: Callback, **settings: Any) -> Run:
    """Train the task for eight steps of 24 samples with a checkpoint every second step."""
    given = {
        "max_steps": 8,
        "save_every": 2,
        "keep_last": 4,
        "log_every": 1,
        "micro_batch_size": 24,
        **settings,
    }
    config = TrainConfig(task="resuming:Odd", output_dir=str(folder), lr=0.05, **given)
    trainer = Trainer(task or Odd(dropout=0.2), config, callbacks=callbacks)
    trainer.fit()
    return trainer.run


def checkpoint(run: Path, step: int) -> Path:
    return run / "checkpoints" / store.name_of(step)


def steps(run: Path) -> list[int]:
    return [found.step for found in discover.listing(run / "checkpoints")]


def rows(run: Path) -> list[dict[str, Any]]:
    return json_lines(run / "metrics.jsonl")


def losses(run: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in rows(run) if "loss" in row}


def lose(run: Path, *names: int) -> None:
    for step in names:
        shutil.rmtree(checkpoint(run, step))


def log_of(run: Path) -> str:
    return (run / "log.txt").read_text()


def reseal(path: Path, **changes: Any) -> None:
    """Give the manifest of a changed checkpoint the sizes and digests of what lies there, and other
    keys.
    """
    manifest = {**json_in(path / store.MANIFEST), **changes}
    for name, fact in manifest["files"].items():
        if (path / name).is_file():
            fact |= {"bytes": (path / name).stat().st_size, "xxh3": discover.hash_file(path / name)}
    (path / store.MANIFEST).write_text(store.sealed(manifest))
