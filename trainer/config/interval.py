"""Intervals of a run, in optimizer steps or in epochs."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from numbers import Rational
from typing import Annotated

from pydantic import BeforeValidator

from ..errors import Origin

FORMS = "steps such as 100, or epochs such as '2 epochs' or '1/4 epoch'"
_EPOCHS = re.compile(r"([0-9]+(?:\.[0-9]+)?|[0-9]+/[0-9]*[1-9][0-9]*) epochs?")


def check_interval(value: object) -> object:
    """Return the value of an interval. Raise ``ValueError`` for any other value."""
    number = _epochs(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, Rational) or number <= 0:
        raise ValueError(f"must be {FORMS}")
    return value


Every = Annotated[int | str, BeforeValidator(check_interval)]
"""The annotation of a setting that is an interval."""


class Interval(Fraction):
    """An interval of optimizer steps. Quarters of an epoch of 10 steps end in 3, 5, 8 and 10."""

    def is_due_at(self, step: int) -> bool:
        """Return whether a multiple of the interval ends with or within this step."""
        # Fractions would take 20 times as long as whole numbers, at each step.
        numerator, denominator = self.as_integer_ratio()
        return step * denominator % numerator < denominator

    @property
    def first_step(self) -> int:
        """Return the step with which, or within which, the interval ends for the first time."""
        return math.ceil(self)


def interval_of(value: int | str, steps_per_epoch: int | None) -> Interval:
    """Return the interval that a setting stands for. A stream has no steps per epoch."""
    check_interval(value)
    if not isinstance(value, str):
        return Interval(value)
    if steps_per_epoch is None:
        raise ValueError("a stream has no known length; use a number of steps")

    steps = _epochs(value) * steps_per_epoch
    if steps < 1:
        raise ValueError(f"is shorter than one step: an epoch has {steps_per_epoch:,} steps here")
    return Interval(steps)


def checked_interval(
    value: int | str | None, steps_per_epoch: int | None, origin: Origin
) -> Interval | None:
    """Return the interval that a key of the config stands for. None for None."""
    if value is None:
        return None
    try:
        return interval_of(value, steps_per_epoch)
    except ValueError as error:
        raise origin.error(str(error), value) from None


def _epochs(text: str) -> Fraction:
    """Return the epochs of a text such as ``1/4 epoch``. 0 for any other text."""
    found = _EPOCHS.fullmatch(text)
    return Fraction(found[1]) if found else Fraction(0)
