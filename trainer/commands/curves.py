"""Judge whether two runs have the same curves: one rule for ``trainer parity`` and ``compare``.

Two runs are the same if every step is within the bound of the precision. A network that chooses
(ReLU, max pooling, experts) may leave the bound by rounding alone. Then the reference itself,
started from weights that are nudged in the last places, shows how far rounding leads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on a run.

    Args:
        sameness: whether the run is the same as the reference.
        largest: the largest relative difference of each quantity.
        text: the largest difference of the loss, and the first step beyond the bound.
    """

    sameness: Sameness
    largest: Mapping[str, float]
    text: str

    def __str__(self) -> str:
        return f"{self.sameness.value}: {self.text}"


def judge(gaps: Gaps, bounds: Bounds, nudged: Sequence[Gaps] = ()) -> Verdict:
    """Judge whether a run is the same as a reference.

    The first loss must be within the bound in any case: rounding hardly changes the first loss, and
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
        beyond += [(step, gap, key) for step, gap in by_step.items() if not gap <= bound]

    if not losses[min(losses)] <= bounds.first:  # NaN as well
        sameness = Sameness.DIFFERS
    elif not beyond:
        sameness = Sameness.SAME
    elif not nudged:
        sameness = Sameness.UNKNOWN
    elif all(_is_led(step, gap, [other[key] for other in nudged]) for step, gap, key in beyond):
        sameness = Sameness.ROUNDING
    else:
        sameness = Sameness.DIFFERS

    largest = {
        key: max(by_step.values(), key=lambda gap: (math.isnan(gap), gap), default=math.nan)
        for key, by_step in gaps.items()
    }
    text = f"loss at most {largest['loss']:.1e} apart (bound {bounds.step:g})"
    if beyond:
        step, gap, key = min(beyond)
        text = f"{key} {gap:.1e} apart at step {step}, {text}"
    return Verdict(sameness=sameness, largest=largest, text=text)


def _is_led(step: int, gap: float, nudged: Sequence[Mapping[int, float]]) -> bool:
    """Return whether nudged runs stray about as far from the reference, at about the same step.

    Args:
        step, gap: a step of the run and the difference there.
        nudged: the differences of each nudged run, by step.
    """
    led = [far for gaps in nudged for at, far in gaps.items() if at <= NUDGE_AHEAD * step]
    return gap <= NUDGE_FACTOR * max(led, default=0.0)


def gaps_of(run: Run, reference: Run, key: str) -> dict[int, float]:
    """Return the relative differences of a curve at the steps of both runs."""
    curve, other = run.curve(key), reference.curve(key)
    return {
        step: abs(curve[step] - other[step]) / max(abs(other[step]), 1e-12)
        for step in sorted(curve.keys() & other)
    }
