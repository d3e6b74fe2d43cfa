"""The settings that decide the numbers of a run: one list, for going on with a run and for comparing runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .schedule import TO_FINAL

# Keys of the training config, of plan.json and of a checkpoint; each of them knows some. How a job runs (strategy,
# processes, the cut of the global batch), what it logs and where it writes is not here.
SETTINGS = (
    "task", "task_settings", "parameters", "weights", "seed",
    "train_samples", "global_batch_size", "drop_last",
    "optimizer", "optimizer_settings", "optimizer_groups", "lr", "max_grad_norm",
    "schedule", "schedule_settings", "schedule_class", "warmup_steps",
    "mixed_precision", "sync_batchnorm", "ema_decay",
)  # fmt: skip
OF_THE_END = ("total_steps", "final_lr_ratio")  # of other schedules a longer run has the same beginning


def fingerprint(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the settings that decide the numbers out of all that is known of a run."""
    keys = SETTINGS + (OF_THE_END if facts.get("schedule") in TO_FINAL else ())
    return {key: facts[key] for key in keys if key in facts}
