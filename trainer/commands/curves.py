"""Judge whether two runs have the same curves: one rule for ``trainer parity`` and ``compare``.

Two runs are the same if every step is within the bound of the precision. A network that chooses
(ReLU, max pooling, experts) may leave the bound by rounding alone. Then the reference itself,
started from weights that are nudged in their last places, shows how far rounding leads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .runs import Run

# The relative differences of a run from another, by quantity and step. NaN means that a value was
# not finite.
Gaps = Mapping[str, Mapping[int, float]]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The relative differences up to which two runs count as the same.

    Args:
        first: the bound of the first loss: the model is the same, only the order of sums differs.
        step: the bound of the loss and the gradient norm of any step.
        weights: the bound of all weights together after a short trial, relative to how far the
            weights moved.
    """

    first: float
    step: float
    weights: float


# Measured under bf16 over 10 steps of the two examples, each strategy against one process: loss
# 1.3e-2, norm 2.8e-2, weights 9.1e-2 (2026-11-21, two x86 CPU cores, torch 2.13, gloo). fp16 is
# finer than bf16, and tf32 has the digits of fp16.
EXACT = Bounds(first=1e-5, step=1e-5, weights=1e-2)
LOW = Bounds(first=2e-2, step=5e-2, weights=2e-1)

# A run may stray this many times as far as the nudged runs do, if they did so at up to this many
# times the step: another rounding may do somewhat more, and somewhat earlier.
NUDGE_FACTOR = 4.0
NUDGE_AHEAD = 2


def bounds_of(plan: Mapping[str, Any]) -> Bounds:
    """Return the bounds for the precision of a run, given its plan."""
    dtypes = plan.get("precision", {})
    computes = {plan.get("mixed_precision", "no"), dtypes.get("compute", "fp32")}
    is_exact = computes == {"no", "fp32"} and dtypes.get("reduction", "fp32") == "fp32"
    return EXACT if is_exact else LOW


class Sameness(Enum):
    """Whether a run is the same as another. UNKNOWN: nudged runs would tell."""

    SAME = "same"
    ROUNDING = "rounding"
    UNKNOWN = "unknown"
    DIFFERS = "differs"


_TEXTS = {
    Sameness.SAME: "the same curve",
    Sameness.ROUNDING: "the same within the rounding of this model",
    Sameness.UNKNOWN: "not the same, by rounding or by a fault",
    Sameness.DIFFERS: "another curve",
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a run.

    Args:
        sameness: whether the run is the same as the reference.
        largest: the largest relative difference of each quantity.
        bound: the bound for each step.
        step: the first step that is beyond the bound. None if all steps are within.
        gap: the largest difference at this step.
    """

    sameness: Sameness
    largest: Mapping[str, float]
    bound: float
    step: int | None = None
    gap: float = 0.0

    def __str__(self) -> str:
        apart = f"at most {self.largest['loss']:.1e} apart"
        if self.step is not None:
            apart = f"{self.gap:.1e} apart at step {self.step}, {apart}"
        return f"{_TEXTS[self.sameness]}: {apart} (bound {self.bound:g})"


def judge(gaps: Gaps, bounds: Bounds, nudged: Sequence[Gaps] = ()) -> Verdict:
    """Judge whether a run is the same as a reference.

    The first loss must be within its bound in any case: rounding hardly changes the first loss, and
    a fault shows there.

    Args:
        gaps: the differences of the run from the reference. The two share a step of the loss.
        bounds: the differences up to which the two are the same.
        nudged: the differences of runs of the reference from nudged weights.
    """
    losses = gaps["loss"]
    beyond = []
    for key, by_step in gaps.items():
        bound = bounds.weights if key == "weights" else bounds.step
        for step, gap in by_step.items():
            if not gap <= bound:  # NaN as well
                beyond.append((step, gap, key))

    is_lost = any(math.isnan(gap) for _, gap, _ in beyond)
    if is_lost or losses[min(losses)] > bounds.first:
        sameness = Sameness.DIFFERS
    elif not beyond:
        sameness = Sameness.SAME
    elif not nudged:
        sameness = Sameness.UNKNOWN
    elif all(_is_led(step, gap, [other[key] for other in nudged]) for step, gap, key in beyond):
        sameness = Sameness.ROUNDING
    else:
        sameness = Sameness.DIFFERS

    first = min((step for step, _, _ in beyond), default=None)
    return Verdict(
        sameness=sameness,
        largest={key: _largest(by_step.values()) for key, by_step in gaps.items()},
        bound=bounds.step,
        step=first,
        gap=_largest(gap for step, gap, _ in beyond if step == first),
    )


def _is_led(step: int, gap: float, nudged: Sequence[Mapping[int, float]]) -> bool:
    """Return whether nudged runs stray about as far from the reference, at about the same step.

    Args:
        step, gap: a step of the run and its difference.
        nudged: the differences of each nudged run, by step.
    """
    led = [far for gaps in nudged for at, far in gaps.items() if at <= NUDGE_AHEAD * step]
    return gap <= NUDGE_FACTOR * max(led, default=0.0)


def gaps_of(run: Run, reference: Run, key: str) -> dict[int, float]:
    """Return the relative differences of a curve at the steps of both runs."""
    curve, other = run.curve(key), reference.curve(key)
    return {step: _relative(curve[step], other[step]) for step in sorted(curve.keys() & other)}


def _relative(value: float | None, reference: float | None) -> float:
    if value is None or reference is None:
        return math.nan
    return abs(value - reference) / max(abs(reference), 1e-12)


def _largest(gaps: Iterable[float]) -> float:
    """Return the largest difference. NaN if one of them is NaN or if there is none."""
    return max(gaps, key=lambda gap: math.inf if math.isnan(gap) else gap, default=math.nan)
