"""How often something is done in a run: every so many optimizer steps, or parts of an epoch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, Field

from ..errors import ConfigError, Origin, Problem

FORMS = "steps such as 100, or epochs such as '2 epochs' or '1/4 epoch'"
_EPOCHS = re.compile(r"([0-9]+(?:\.[0-9]+)?|[0-9]+/[0-9]+) epochs?")


def as_epochs(value: object) -> str:
    """Return how to write a bare number such as 0.25 as epochs, for messages; "" for others."""
    if not isinstance(value, float):
        return ""
    if value < 1:
        return f"; a part of an epoch is written '{value:g} epoch'"
    return f"; epochs are written '{value:g} epochs'"


def _refuse_part(value: object) -> object:
    """Raise ``ValueError`` for a part of something that is not named."""
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"must be {FORMS}{as_epochs(value)}")
    return value


Every = Annotated[Annotated[int, Field(ge=1)] | str, BeforeValidator(_refuse_part)]
"""The annotation of a setting that says how often."""


@dataclass(frozen=True)
class Interval:
    """An interval of a run.

    Args:
        steps: optimizer steps from one time to the next. Those of a part of an epoch need not be a
            whole number: a quarter of an epoch of 10 steps ends within the steps 3, 5, 8 and 10.
    """

    steps: Fraction

    def is_due_at(self, step: int) -> bool:
        """Return whether a multiple of the interval ends with this step, or within it."""
        numerator, denominator = self.steps.numerator, self.steps.denominator
        # In whole numbers: fractions take 20 times as long, and this is asked at each step.
        return step * denominator // numerator > (step - 1) * denominator // numerator

    @property
    def first_step(self) -> int:
        """Return the step with which, or within which, the interval ends for the first time."""
        return math.ceil(self.steps)


def is_interval(value: object) -> bool:
    """Return whether a number of steps, or a text, says how often."""
    if isinstance(value, str):
        return _epochs(value) is not None
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def interval_of(value: int | str, steps_per_epoch: int | None) -> Interval:
    """Return the interval that a setting stands for.

    Args:
        value: steps, or epochs as text.
        steps_per_epoch: None for a stream, whose length is not known.

    Raises:
        ValueError: there are no epochs, or the interval is shorter than one step.
    """
    if not isinstance(value, str):
        return Interval(Fraction(value))

    epochs = _epochs(value)
    assert epochs is not None, f"{value!r} passed no check"
    if steps_per_epoch is None:
        raise ValueError("a stream has no known length; use a number of steps")
    steps = epochs * steps_per_epoch
    if steps < 1:
        raise ValueError(
            f"is shorter than one step: an epoch has {steps_per_epoch:,} steps here, so use "
            f"'1/{steps_per_epoch} epoch' or more, or a number of steps"
        )
    return Interval(steps)


def checked_interval(
    value: int | str | None, steps_per_epoch: int | None, origin: Origin
) -> Interval | None:
    """Return the interval that a key of the config stands for; None stays None.

    Raises:
        ConfigError: as ``interval_of``.
    """
    if value is None:
        return None
    try:
        return interval_of(value, steps_per_epoch)
    except ValueError as error:
        raise ConfigError(Problem(origin=origin, value=value, rule=str(error))) from None


def _epochs(text: str) -> Fraction | None:
    """Return the epochs that a text such as ``1/4 epoch`` names; None where it names none."""
    found = _EPOCHS.fullmatch(text)
    if found is None:
        return None
    try:
        epochs = Fraction(found[1])
    except ZeroDivisionError:
        return None
    return epochs if epochs > 0 else None


def interval_text(interval: Interval | None) -> str:
    """Return how often something is done, for people: ``every 2.5 steps and at the end``."""
    if interval is None:
        return "at the end"
    steps = float(interval.steps)
    return "every step" if steps == 1 else f"every {steps:,.10g} steps and at the end"
