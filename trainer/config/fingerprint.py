"""The settings that decide the numbers of a run, for resuming and for comparing runs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..text import hidden
from .plain import plain
from .schedule_keys import TO_FINAL

# Keys of the training config, of plan.json and of a checkpoint, which hold some of the keys each.
# Strategy, processes, the cut of the global batch, logging and folders decide no number.
SETTINGS = (
    "task", "task_settings", "parameters", "weights", "base_weights", "seed",
    "train_samples", "global_batch_size", "drop_last",
    "optimizer", "optimizer_settings", "optimizer_groups", "lr", "max_grad_norm",
    "schedule", "schedule_settings", "schedule_class", "warmup_steps",
    "mixed_precision", "float32", "sync_batchnorm", "ema_decay",
)  # fmt: skip
# A longer run has the same beginning under all schedules but those that fall until the end.
OF_THE_END = ("total_steps", "final_lr_ratio")


def task_facts(task: object, named: str) -> dict[str, Any]:
    """Return the name and the settings of a task, as JSON holds them, with secrets hidden.

    Fields that do not compare (``field(compare=False)``) are the task's memory. ``named`` is
    ``module:Class`` in the config, and the name of the class replaces any other text.
    """
    cls = type(task)
    module, _, name = named.partition(":")
    leads_here = getattr(sys.modules.get(module), name, None) is cls

    settings = plain(task, compared=True) if dataclasses.is_dataclass(task) else {}
    return {
        "task": named if leads_here else f"{cls.__module__}:{cls.__qualname__}",
        "task_settings": hidden(settings),
    }


def task_folder(task: object) -> str | None:
    """Return the folder from which a task's module is imported. None if no file is known."""
    name = type(task).__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    if not file:
        return None
    depth = name.count(".") + (Path(file).stem == "__init__")
    return str(Path(file).resolve().parents[depth])


def fingerprint(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return those facts of a run that decide the numbers."""
    keys: tuple[str, ...] = SETTINGS
    if facts.get("schedule") in TO_FINAL:
        keys += OF_THE_END

    if facts.get("same_bits"):
        keys += ("same_bits", "micro_batch_size")

    chosen = {key: facts[key] for key in keys if key in facts}
    if chosen.get("float32") == "exact":  # checkpoints of such runs may lack the key
        del chosen["float32"]
    return chosen
