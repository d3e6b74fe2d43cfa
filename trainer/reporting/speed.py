"""The speed of a run: the definition for the last lines, summary.json and comparisons of runs.

Each logged row has the speed since the row before, without pauses. The first row of a process also
holds costs that are paid once, and does not count. The speed is the median of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from statistics import median
from typing import Any

UNITS = ("samples", "tokens", "trained_tokens")


def steady_speed(rows: Iterable[Mapping[str, Any]], unit: str) -> float | None:
    """Return the speed of a run from its logged rows. None if no row is of the steady state.

    The ``seconds`` of the rows start again in a process that resumes.
    """
    key = f"{unit}_per_second"
    logged = [row for row in rows if row.get(key)]  # no evaluation
    values = [row[key] for before, row in pairwise(logged) if row["seconds"] >= before["seconds"]]
    return median(values) if values else None
