"""The settings that decide the numbers of a run: one list, for going on with a run and for
comparing runs.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from ..text import hidden
from .annotations import plain
from .schedules import TO_FINAL

# Keys of the training config, of plan.json and of a checkpoint; each of them knows some. How a job
# runs (strategy, processes, the cut of the global batch), what it logs and where it writes is not
# here.
SETTINGS = (
    "task", "task_settings", "parameters", "weights", "base_weights", "seed",
    "train_samples", "global_batch_size", "drop_last",
    "optimizer", "optimizer_settings", "optimizer_groups", "lr", "max_grad_norm",
    "schedule", "schedule_settings", "schedule_class", "warmup_steps",
    "mixed_precision", "float32", "sync_batchnorm", "ema_decay",
)  # fmt: skip
# Keys that older runs did not know, with the value that they ran with.
SINCE = {"float32": "exact"}
OF_THE_END = (
    "total_steps",
    "final_lr_ratio",
)  # of other schedules a longer run has the same beginning


def task_facts(task: object, named: str) -> dict[str, Any]:
    """Say which task it is, and its settings as JSON holds them, whoever built it.

    The texts of secrets are hidden: who they let in does not decide the numbers.

    Fields that take no part in comparing tasks (``field(compare=False)``) are no settings but what
    a task remembers.

    Args:
        named: what the config calls it, ``module:Class``; it counts if it leads to the task's
            class.
    """
    cls = type(task)
    module, _, name = named.partition(":")
    same = getattr(sys.modules.get(module), name, None) is cls
    fields = dataclasses.fields(task) if dataclasses.is_dataclass(task) else ()
    settings = {field.name: getattr(task, field.name) for field in fields if field.compare}
    return {
        "task": named if same else f"{cls.__module__}:{cls.__qualname__}",
        "task_settings": hidden(plain(settings, compared=True)),
    }


def fingerprint(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the settings that decide the numbers out of all that is known of a run."""
    keys = SETTINGS + (OF_THE_END if facts.get("schedule") in TO_FINAL else ())
    return {
        key: facts[key] for key in keys if key in facts and (key, facts[key]) not in SINCE.items()
    }
