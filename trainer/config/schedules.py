"""The schedules that a config can name, and their settings, held against each other without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
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

    milestones: Annotated[
        list[int], About("optimizer steps after which lr is multiplied by gamma", minimum=1)
    ]
    gamma: Annotated[float, About("the factor at each milestone", above=0)] = 0.1


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay:
    """The settings of ``wsd``: how long the decay at the end is."""

    decay_steps: Annotated[int | None, About("in optimizer steps", minimum=1)] = None
    decay_fraction: Annotated[
        float | None, About("in parts of the whole run", above=0, maximum=1)
    ] = None

    def __post_init__(self) -> None:
        if (self.decay_steps is None) == (self.decay_fraction is None):
            raise ValueError(
                "needs one of decay_steps and decay_fraction, such as decay_fraction: 0.2"
            )


SCHEDULES: Mapping[str, type] = {
    "constant": Nothing,
    "linear": Nothing,
    "cosine": Nothing,
    "step": Step,
    "wsd": WarmupStableDecay,
    "inverse_sqrt": Nothing,
}
TO_FINAL = ("linear", "cosine", "wsd")  # those that end at final_lr_ratio


def check_schedule(check: Validator, schedule: str, settings: Mapping[str, Any]) -> None:
    """Record what is wrong with a schedule and its settings as far as torch need not be asked."""
    if schedule in SCHEDULES:
        check.build(SCHEDULES[schedule], settings, ("schedule_settings",))
    elif schedule == TORCH + PLATEAU:
        check.record(
            ("schedule",), "follows a metric and not the optimizer steps; not offered", schedule
        )
    elif not re.fullmatch(rf"{TORCH}[A-Za-z]\w*", schedule):
        known = did_you_mean(schedule, [*SCHEDULES, "torch:<class of torch.optim.lr_scheduler>"])
        check.record(("schedule",), f"unknown schedule; {known}", schedule)
