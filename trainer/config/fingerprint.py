"""The settings that decide the numbers of a run: one list, for resuming and for comparing runs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..text import hidden
from .plain import plain
from .schedules import TO_FINAL

# Keys of the training config, of plan.json and of a checkpoint. Each of them knows some. How a job
# runs (strategy, processes, the cut of the global batch), what it logs and where it writes is not
# here.
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
    """Return which task it is, and its settings as JSON holds them, whoever built it.

    The texts of secrets are hidden: who they let in does not decide the numbers. Fields that take
    no part in comparing tasks (``field(compare=False)``) are no settings but the task's memory.

    Args:
        named: the task in the config, ``module:Class``. It counts if it leads to the task's class.
    """
    cls = type(task)
    module, _, name = named.partition(":")
    leads_here = getattr(sys.modules.get(module), name, None) is cls

    fields = dataclasses.fields(task) if dataclasses.is_dataclass(task) else ()
    settings = {field.name: getattr(task, field.name) for field in fields if field.compare}
    return {
        "task": named if leads_here else f"{cls.__module__}:{cls.__qualname__}",
        "task_settings": hidden(plain(settings, compared=True)),
    }


def task_folder(task: object) -> str | None:
    """Return the folder from which the module of a task is imported, to find it there again.

    None if its file is not known.
    """
    name = type(task).__module__
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None:
        return None
    depth = name.count(".") + (Path(file).stem == "__init__")
    return str(Path(file).resolve().parents[depth])


def fingerprint(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that decide the numbers, out of all that is known of a run."""
    keys = list(SETTINGS)
    if facts.get("schedule") in TO_FINAL:
        keys.extend(OF_THE_END)

    chosen = {key: facts[key] for key in keys if key in facts}
    if chosen.get("float32") == "exact":  # checkpoints of such runs have no such key
        del chosen["float32"]
    return chosen
