"""The best of the compared runs, by ``best_metric`` or by the metric that ``--by`` names."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...text import did_you_mean, listed
from ..runs import Run
from ..usage import usage_error


@dataclass(frozen=True, kw_only=True)
class By:
    """A metric, and whether its smallest or its largest value is the best."""

    metric: str
    mode: str

    @classmethod
    def of(cls, run: Run) -> By | None:
        """Return what a run kept its best model by; None where it kept none."""
        metric = run.plan.get("best_metric")
        if not metric:
            return None
        mode = "max" if run.plan.get("best_mode") == "max" else "min"
        return cls(metric=str(metric), mode=mode)

    def __str__(self) -> str:
        return f"{self.metric} ({self.mode})"

    def best(self, run: Run) -> dict[str, Any] | None:
        """Return the best value of a run and its first step; None where it has no finite value."""
        values = {}
        for step, value in run.curve(self.metric).items():
            if value is not None and math.isfinite(value):
                values[step] = float(value)
        if not values:
            return None

        better = max if self.mode == "max" else min
        step = better(values, key=lambda step: values[step])
        return {"metric": self.metric, "value": values[step], "step": step}


def chosen(runs: Sequence[Run], metric: str | None, mode: str | None) -> By | None:
    """Return what ``--by`` and ``--mode`` ask for; None without them.

    Raises:
        ConfigError: no run has logged the metric, or its mode is not known.
    """
    if metric is None:
        if mode is not None:
            raise usage_error("mode", mode, "needs --by, whose mode it is")
        return None

    known = {key for run in runs for row in run.rows for key in row}
    if metric not in known:
        names = sorted(key for key in known if key.startswith("eval/"))
        rule = f"no run has logged it; {did_you_mean(metric, names)}"
        raise usage_error("by", metric, rule)
    if mode is None:
        of_runs = [By.of(run) for run in runs]
        modes = {by.mode for by in of_runs if by is not None and by.metric == metric}
        if len(modes) != 1:
            raise usage_error("by", metric, "which value is the best? add --mode min or --mode max")
        [mode] = modes
    return By(metric=metric, mode=mode)


def best_text(runs: Sequence[Run], names: Sequence[str], by: By | None) -> str:
    """Return the sentence that names the best run; empty where nobody asked for one.

    Args:
        runs: all that are compared.
        names: theirs, in the same order.
        by: what the user chose; else what the runs themselves kept their best models by.
    """
    if len(runs) == 1:
        return ""
    if by is None:
        of_runs = {name: By.of(run) for name, run in zip(names, runs, strict=True) if run.plan}
        different = {str(found): found for found in of_runs.values() if found is not None}
        if not different:
            return ""
        if len(different) > 1:
            return _no_common_metric(of_runs)
        [by] = different.values()

    found = {}
    without = []
    for name, run in zip(names, runs, strict=True):
        best = by.best(run)
        if best is None:
            without.append(name)
        else:
            found[name] = best
    if not found:
        return f"Best by {by}: none has logged it."

    better = max if by.mode == "max" else min
    value = better(best["value"] for best in found.values())
    winners = [name for name, best in found.items() if best["value"] == value]
    steps = [f"{name} at step {found[name]['step']}" for name in winners]
    if len(winners) == 1:
        text = f"Best by {by}: {winners[0]}, {value:.6g} at step {found[winners[0]]['step']}"
    else:
        text = f"Best by {by}: {len(winners)} runs are equal with {value:.6g}: {', '.join(steps)}"
    if without:
        text += f"; without an evaluation by it: {listed(without, 6)}"
    return f"{text}."


def _no_common_metric(of_runs: Mapping[str, By | None]) -> str:
    """Return why no run is named: they kept their best models by different metrics."""
    groups: dict[str, list[str]] = {}
    for name, by in of_runs.items():
        groups.setdefault("none" if by is None else str(by), []).append(name)

    parts = [f"{by} in {listed(names)}" for by, names in groups.items()]
    return (
        f"Best: not named, for the runs differ in best_metric: {'; '.join(parts)}. "
        "--by eval/loss --mode min names one"
    )
