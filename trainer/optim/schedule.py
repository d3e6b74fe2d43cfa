"""Learning rate: how it follows the batch, and how it moves with the optimizer steps.

The schedules that a config can name are held against its ``schedule_settings`` without torch, so
that a mistake is answered in a blink; torch is imported where a schedule is built.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..config.schedules import PLATEAU, TORCH
from ..errors import ConfigError, Problem
from ..text import did_you_mean

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from ..plan import Plan


def lr_factor(
    schedule: str,
    settings: Mapping[str, Any] | None = None,
    *,
    warmup_steps: int,
    total_steps: int,
    final_ratio: float = 0.0,
) -> Callable[[int], float]:
    """Return the factor of the learning rate as a function of the optimizer step (0 for the first
    one).

    The rate rises linearly (with ``warmup_type: log`` in the settings: logarithmically) and reaches
    its full value at step ``warmup_steps``; the first step never has rate zero. Afterwards
    ``constant`` stays, ``linear`` and ``cosine`` end at ``final_ratio``; ``step`` multiplies at its
    milestones; ``wsd`` stays and ends in a linear decay to ``final_ratio`` (Hu et al. 2024,
    MiniCPM); ``inverse_sqrt`` falls with the square root of the steps since the start (Vaswani et
    al. 2017).
    """
    settings = settings or {}

    def ramp(step: int, begin: int) -> float:
        return min(1.0, (step - begin) / max(1, total_steps - begin))

    def falling(left: float) -> float:
        return final_ratio + (1.0 - final_ratio) * left

    milestones = sorted(settings.get("milestones", ()))
    decay = settings.get("decay_steps") or max(
        1, round(settings.get("decay_fraction", 0.0) * total_steps)
    )
    stable = max(warmup_steps, total_steps - decay)
    kinds: dict[str, Callable[[int], float]] = {
        "constant": lambda step: 1.0,
        "linear": lambda step: falling(1.0 - ramp(step, warmup_steps)),
        "cosine": lambda step: falling(0.5 * (1.0 + math.cos(math.pi * ramp(step, warmup_steps)))),
        "step": lambda step: float(settings.get("gamma", 0.1) ** bisect_right(milestones, step)),
        "wsd": lambda step: 1.0 if step < stable else falling(1.0 - ramp(step, stable)),
        "inverse_sqrt": lambda step: math.sqrt((warmup_steps + 1) / (step + 1)),
    }
    after = kinds[schedule]

    def rising(step: int) -> float:
        if settings.get("warmup_type") == "log":
            return math.log(step + 2) / math.log(warmup_steps + 2)
        return (step + 1) / (warmup_steps + 1)

    return lambda step: rising(step) if step < warmup_steps else after(step)


def build_schedule(optimizer: Optimizer, plan: Plan, total_steps: int) -> LRScheduler:
    """Build the schedule of the plan; its ``step()`` is called once per optimizer step that was not
    skipped.

    Raises:
        ConfigError: torch has no such schedule, or it does not take these settings.
    """
    from torch.optim.lr_scheduler import LambdaLR, SequentialLR

    if not plan.schedule.startswith(TORCH):
        factor = lr_factor(
            plan.schedule,
            plan.schedule_settings,
            warmup_steps=plan.warmup_steps,
            total_steps=total_steps,
            final_ratio=plan.final_lr_ratio,
        )
        return LambdaLR(optimizer, factor)
    schedule = _of_torch(optimizer, plan)
    if not plan.warmup_steps:
        return schedule
    rising = LambdaLR(
        optimizer, lr_factor("constant", warmup_steps=plan.warmup_steps, total_steps=total_steps)
    )
    return SequentialLR(optimizer, [rising, schedule], milestones=[plan.warmup_steps])


def check_schedule(plan: Plan) -> None:
    """Build a schedule of torch for nothing, so that it is refused before data and model are made."""
    if plan.schedule.startswith(TORCH):
        import torch

        _of_torch(torch.optim.SGD([torch.zeros(1)], lr=plan.lr, momentum=0.5), plan)


def _of_torch(optimizer: Optimizer, plan: Plan) -> LRScheduler:
    from torch.optim import lr_scheduler

    name, settings = plan.schedule.removeprefix(TORCH), dict(plan.schedule_settings)
    known = {*lr_scheduler.__all__} - {"LRScheduler", PLATEAU}
    origin = plan.origin("schedule")
    if name not in known:
        rule = f"torch.optim.lr_scheduler has no such schedule; {did_you_mean(name, known)}"
        raise ConfigError(Problem(origin=origin.named("schedule"), value=plan.schedule, rule=rule))
    try:
        return getattr(lr_scheduler, name)(optimizer, **settings)  # type: ignore[no-any-return]
    except (TypeError, ValueError, AttributeError) as error:
        rule = f"torch's {name} does not take these: {error}"
        origin = plan.origin("schedule_settings") if settings else origin
        raise ConfigError(
            Problem(origin=origin.named("schedule_settings"), value=settings, rule=rule)
        ) from None
