"""The schedules that a config can name, and their settings, held against each other without torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from ..text import did_you_mean
from .annotations import About
from .validate import Validator

TORCH = "torch:"
PLATEAU = "ReduceLROnPlateau"


@dataclass(frozen=True, kw_only=True)
class Nothing:
    """The settings of ``constant``, ``linear``, ``cosine`` and ``inverse_sqrt``."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """The settings of ``step``."""

    milestones: Annotated[list[int], About("optimizer steps after which lr is multiplied by gamma", minimum=1)]
    gamma: Annotated[float, About("the factor at each milestone", above=0)] = 0.1


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay:
    """The settings of ``wsd``: how long the decay at the end is."""

    decay_steps: Annotated[int | None, About("in optimizer steps", minimum=1)] = None
    decay_fraction: Annotated[float | None, About("in parts of the whole run", above=0, maximum=1)] = None

    def __post_init__(self) -> None:
        if (self.decay_steps is None) == (self.decay_fraction is None):
            raise ValueError("needs one of decay_steps and decay_fraction, such as decay_fraction: 0.2")


SCHEDULES: Mapping[str, type] = {
    "constant": Nothing,
    "linear": Nothing,
    "cosine": Nothing,
    "step": Step,
    "wsd": WarmupStableDecay,
    "inverse_sqrt": Nothing,
}
TO_FINAL = ("linear", "cosine", "wsd")  # those that end at final_lr_ratio


def schedule_problems(schedule: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield ``(key, rule, value)`` for what is wrong with a schedule and its settings without asking torch."""
    if schedule.startswith(TORCH):
        if schedule == TORCH + PLATEAU:
            yield "schedule", "follows a metric and not the optimizer steps; not offered", schedule
        elif not re.fullmatch(r"torch:[A-Za-z]\w*", schedule):
            yield "schedule", "must be torch:Class, a class of torch.optim.lr_scheduler", schedule
    elif schedule not in SCHEDULES:
        known = did_you_mean(schedule, [*SCHEDULES, "torch:<class of torch.optim.lr_scheduler>"])
        yield "schedule", f"unknown schedule; {known}", schedule
    else:
        validator = Validator()
        validator.build(SCHEDULES[schedule], settings, ("schedule_settings",))
        for problem in validator.problems:
            yield problem.key, problem.rule, problem.value
