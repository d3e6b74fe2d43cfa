"""Learning rate: how it follows the batch, and how it moves with the optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Callable


def scaled_lr(lr: float, rule: str, reference_batch: int, batch: int) -> float:
    """The learning rate for the global batch that runs.

    Args:
        lr: belongs to ``reference_batch`` (in samples).
        rule: ``linear`` (Goyal et al. 2017), ``sqrt`` (Malladi et al. 2022, for Adam) or ``none``.
    """
    ratio = batch / reference_batch
    return lr * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]


def lr_factor(schedule: str, *, warmup_steps: int, total_steps: int, final_ratio: float) -> Callable[[int], float]:
    """Factor of the learning rate at optimizer step ``step`` (0 for the first one).

    The rate rises linearly and reaches its full value at step ``warmup_steps``; the first step never has
    rate zero. Afterwards ``constant`` stays, ``linear`` and ``cosine`` end at ``final_ratio``.
    """

    def factor(step: int) -> float:
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)
        if schedule == "constant":
            return 1.0
        done = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
        left = 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return final_ratio + (1.0 - final_ratio) * left

    return factor
