"""The speed of a run: the definition for the last lines, summary.json and comparisons of runs.

Each logged row has the speed since the row before, without pauses. The first row of a process also
holds costs that are paid once, and does not count. The speed is the median of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

UNITS = ("samples", "tokens", "trained_tokens")


def steady_speed(rows: Iterable[Mapping[str, Any]], unit: str) -> float | None:
    """Return the speed of a run from its logged rows. None if no row is of the steady state.

    The ``seconds`` of the rows start again in a process that resumes.
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
    return median(values) if values else None
