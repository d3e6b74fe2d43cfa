"""The learning rate over the optimizer steps.

A config's schedule is validated without torch (``config/schedule_keys.py``), so that a mistake is
reported at once. Only building a schedule imports torch.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..config.named_class import find_class
from ..config.schedule_keys import TORCH

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from ..run_plan import Plan


def lr_factor(
    schedule: str,
    settings: Mapping[str, Any],
    *,
    warmup_steps: int,
    total_steps: int,
    final_ratio: float = 0.0,
) -> Callable[[int], float]:
    """Return the factor of the learning rate as a function of the optimizer step, from 0 on.

    In the warm-up the rate rises linearly, or logarithmically with ``warmup_type: log`` in the
    settings, to the full rate at step ``warmup_steps``. The first step never has rate zero.
    Afterwards the schedule decides:

        constant       the rate stays
        linear         the rate falls to ``final_ratio`` at ``total_steps``
        cosine         as linear, along half a cosine
        step           the rate is multiplied by ``gamma`` at each of the ``milestones``
        wsd            the rate stays, and falls linearly to ``final_ratio`` at the end, over
                       ``decay_steps`` or ``decay_fraction`` (Hu et al. 2024, MiniCPM)
        inverse_sqrt   the rate falls with the square root of the steps since the start (Vaswani et
                       al. 2017)
    """
    begin = warmup_steps  # of the decay
    if schedule == "wsd":
        decay_steps = settings.get("decay_steps") or round(settings["decay_fraction"] * total_steps)
        begin = max(begin, total_steps - max(1, decay_steps))

    def factor(step: int) -> float:
        if step < warmup_steps:
            if settings.get("warmup_type") == "log":
                return math.log(step + 2, warmup_steps + 2)
            return (step + 1) / (warmup_steps + 1)
        if schedule == "step":
            return float(
                settings.get("gamma", 0.1) ** bisect_right(sorted(settings["milestones"]), step)
            )
        if schedule == "inverse_sqrt":
            return math.sqrt((warmup_steps + 1) / (step + 1))
        if schedule == "constant" or step < begin:
            return 1.0

        passed = min(1.0, (step - begin) / max(1, total_steps - begin))
        left = 1.0 - passed
        if schedule == "cosine":
            left = 0.5 * (1.0 + math.cos(math.pi * passed))
        return final_ratio + (1.0 - final_ratio) * left

    return factor


def build_schedule(optimizer: Optimizer, plan: Plan, total_steps: int) -> LRScheduler:
    """Build the plan's schedule. ``step()`` follows each optimizer step that was not skipped.

    Raises:
        ConfigError: torch has no such schedule, or the schedule does not take these settings.
    """
    from torch.optim.lr_scheduler import LambdaLR, SequentialLR

    is_of_torch = plan.schedule.startswith(TORCH)
    factor = lr_factor(
        "constant" if is_of_torch else plan.schedule,
        plan.schedule_settings,
        warmup_steps=plan.warmup_steps,
        total_steps=total_steps,
        final_ratio=plan.final_lr_ratio,
    )
    if not is_of_torch:
        return LambdaLR(optimizer, factor)

    schedule = _of_torch(optimizer, plan)
    if plan.warmup_steps == 0:
        return schedule
    schedules = [LambdaLR(optimizer, factor), schedule]
    return SequentialLR(optimizer, schedules, milestones=[plan.warmup_steps])


def _of_torch(optimizer: Optimizer, plan: Plan) -> LRScheduler:
    """Build a schedule of ``torch.optim.lr_scheduler`` by name."""
    from torch.optim import lr_scheduler

    origin = plan.origin("schedule")
    name = plan.schedule.replace(TORCH, "torch.optim.lr_scheduler:")
    kind = find_class(name, lr_scheduler.LRScheduler, origin)
    if kind is lr_scheduler.ReduceLROnPlateau:
        raise origin.error("follows a metric, which a step does not have", plan.schedule)
    try:
        return kind(optimizer, **plan.schedule_settings)
    except (TypeError, ValueError, AttributeError) as error:
        rule = f"does not take schedule_settings {dict(plan.schedule_settings)}: {error}"
        raise origin.error(rule, plan.schedule) from None
