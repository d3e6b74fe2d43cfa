"""The schedules that a config can name, and their settings. torch is not imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from ..errors import Origin
from ..text import did_you_mean
from .validate import build

TORCH = "torch:"


@dataclass(frozen=True, kw_only=True)
class Step:
    """The settings of ``step``: lr is multiplied by ``gamma`` after each of the milestones."""

    milestones: list[Annotated[int, Field(ge=1)]]
    gamma: Annotated[float, Field(gt=0)] = 0.1


@dataclass(frozen=True, kw_only=True)
class WarmupStableDecay:
    """The settings of ``wsd``: the length of the decay at the end, in steps or parts of the run."""

    decay_steps: Annotated[int | None, Field(ge=1)] = None
    decay_fraction: Annotated[float | None, Field(gt=0, le=1)] = None

    def __post_init__(self) -> None:
        if (self.decay_steps is None) == (self.decay_fraction is None):
            raise ValueError(
                "needs one of decay_steps and decay_fraction, such as decay_fraction: 0.2"
            )


# An object has no settings.
SCHEDULES: Mapping[str, type] = {
    "constant": object,
    "linear": object,
    "cosine": object,
    "step": Step,
    "wsd": WarmupStableDecay,
    "inverse_sqrt": object,
}
TO_FINAL = ("linear", "cosine", "wsd")  # those that end at final_lr_ratio


def check_schedule(schedule: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for a wrong schedule or setting. Torch's are checked when built."""
    origin = Origin("TrainConfig").named
    if schedule in SCHEDULES:
        build(SCHEDULES[schedule], settings, origin, "schedule_settings.")
    elif not re.fullmatch(rf"{TORCH}[A-Za-z]\w*", schedule):
        known = [*SCHEDULES, "torch:<class of torch.optim.lr_scheduler>"]
        rule = f"unknown schedule; {did_you_mean(schedule, known)}"
        raise origin("schedule").error(rule, schedule)
