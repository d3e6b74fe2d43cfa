"""The speed of a run: one definition, for its last lines, summary.json and for comparing runs.

Each logged row says how many samples (and tokens: those that went through the model, and those that
it was trained on) a second passed since the row before, without pauses for evaluation and saving.
The first row of a process also holds what is paid once (compiling, the first allocations): it does
not count. The speed is the median of the others, its spread the middle half of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

UNITS = ("samples", "tokens", "trained_tokens")


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A speed in steady state.

    Args:
        median: of the readings, a second.
        low, high: first and third quartile of the readings.
        readings: how many there are.
    """

    median: float
    low: float
    high: float
    readings: int

    def text(self, unit: str) -> str:
        """Return it for people, with its spread."""
        text = f"{_short(self.median)} {unit.replace('_', ' ')}/s"
        if self.readings < 2:
            return text

        spread = f"{_short(self.low)} to {_short(self.high)}"
        return f"{text} (middle half of {self.readings} readings: {spread})"

    def as_dict(self, unit: str) -> dict[str, Any]:
        """Return it as summary.json holds it."""
        values: dict[str, Any] = {f"{unit}_per_second": round(self.median, 3)}
        if self.readings:
            values[f"{unit}_per_second_quartiles"] = [round(self.low, 3), round(self.high, 3)]
        values["readings_of_speed"] = self.readings
        return values

    @classmethod
    def of_readings(cls, values: Sequence[float]) -> Speed | None:
        """Return the speed of readings in steady state; None where there are none."""
        if not values:
            return None
        middle = median(values)
        if len(values) == 1:
            return cls(median=middle, low=middle, high=middle, readings=1)

        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(median=middle, low=low, high=high, readings=len(values))

    @classmethod
    def of_summary(cls, summary: Mapping[str, Any], unit: str) -> Speed | None:
        """Read what ``as_dict`` wrote into a summary; None where it has no speed in this unit."""
        value = summary.get(f"{unit}_per_second")
        if value is None:
            return None

        low, high = summary.get(f"{unit}_per_second_quartiles", (value, value))
        readings = summary.get("readings_of_speed", 0)
        return cls(median=value, low=low, high=high, readings=readings)


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def steady_speed(rows: Iterable[Mapping[str, Any]], unit: str) -> Speed | None:
    """Return the speed of a run from its logged rows; None where no row is of the steady state.

    Args:
        rows: in their order, with ``seconds`` since the process began to train; they start again
            in a process that resumes.
        unit: one of ``UNITS``.
    """
    values = []
    seconds_before = math.inf
    for row in rows:
        if row.get("samples_per_second") is None:
            continue  # an evaluation

        seconds = float(row.get("seconds", 0.0))
        is_first_of_process = seconds < seconds_before
        seconds_before = seconds

        value = row.get(f"{unit}_per_second")
        if value and not is_first_of_process:
            values.append(float(value))
    return Speed.of_readings(values)
