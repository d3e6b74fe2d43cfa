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

    def as_dict(self, unit: str) -> dict[str, Any]:
        """Return the speed as summary.json holds it."""
        values: dict[str, Any] = {f"{unit}_per_second": round(self.median, 3)}
        if self.readings:
            values[f"{unit}_per_second_quartiles"] = [round(self.low, 3), round(self.high, 3)]
        values["readings_of_speed"] = self.readings
        return values

    @classmethod
    def of_readings(cls, values: Sequence[float]) -> Speed | None:
        """Return the speed of readings in steady state; or None without readings."""
        if not values:
            return None
        middle = median(values)
        if len(values) == 1:
            return cls(median=middle, low=middle, high=middle, readings=1)

        low, _, high = quantiles(values, n=4, method="inclusive")
        return cls(median=middle, low=low, high=high, readings=len(values))


def steady_speed(rows: Iterable[Mapping[str, Any]], unit: str) -> Speed | None:
    """Return the speed of a run from its logged rows; or None if no row is of the steady state.

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
