"""Judge whether two runs have the same curves: one rule for ``trainer parity`` and ``compare``.

Two runs are the same if every step is within the bound of the precision. A network that chooses
(ReLU, max pooling, experts) may leave the bound by rounding alone. Then the reference itself,
started from weights that are nudged in the last places, shows how far rounding leads.

No fixed bound can take the place of nudged runs. Within 30 steps in float32 rounding led the digits
CNN 1.2e-2 away in the loss. A weight decay that got lost led a smooth CNN only 5e-4 away
(2026-11-27).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .finished_runs import Run

# The relative differences of a run from another, by quantity and step. NaN means that a value was
# not finite.
Gaps: TypeAlias = Mapping[str, Mapping[int, float]]


class Bounds(NamedTuple):
    """The relative differences up to which two runs count as the same.

    Args:
        first: of the first loss: the model is the same, only the order of sums differs.
        step: of the loss and the gradient norm of any step.
        weights: of all weights together, relative to how far the weights moved.
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
    dtypes = {plan["precision"].get(part, "fp32") for part in ("compute", "reduction")}
    return EXACT if dtypes == {"fp32"} else LOW


def gaps_of(run: Run, reference: Run, key: str) -> dict[int, float]:
    """Return the relative differences of a curve at the steps of both runs."""
    other = reference.curve(key)
    return {
        step: abs(value - other[step]) / max(abs(other[step]), 1e-12)
        for step, value in run.curve(key).items()
        if step in other
    }


def largest(gaps: Mapping[int, float]) -> float:
    """Return the largest difference of any step. NaN if a difference is NaN."""
    return float(np.max([*gaps.values()]))


def judge(gaps: Gaps, bounds: Bounds, nudged: Collection[Gaps] = ()) -> tuple[str, str]:
    """Judge whether a run is the same as a reference.

    Rounding hardly changes the first loss, which must be within the bound in any case.

    Args:
        gaps: the differences of the run from the reference. The two share a step of the loss.
        nudged: the differences of runs of the reference from nudged weights.

    Returns:
        The verdict (``same``, ``rounding``, ``differs``, or ``unknown`` if nudged runs would tell),
        and a text: the first step beyond the bound, and the largest difference of the loss.
    """
    losses = gaps["loss"]
    text = f"loss at most {largest(losses):.1e} apart (bound {bounds.step:g})"
    beyond = []
    for key, by_step in gaps.items():
        bound = bounds.weights if key == "weights" else bounds.step
        beyond += [(step, gap, key) for step, gap in by_step.items() if not gap <= bound]
    if beyond:
        step, gap, key = min(beyond)
        text = f"{key} {gap:.1e} apart at step {step}, {text}"

    if not losses[min(losses)] <= bounds.first:  # NaN as well
        return "differs", text
    if not beyond:
        return "same", text
    if not nudged:
        return "unknown", text
    is_led = all(gap <= _led(step, key, nudged) for step, gap, key in beyond)
    return "rounding" if is_led else "differs", text


def _led(step: int, key: str, nudged: Collection[Gaps]) -> float:
    """Return how far rounding may lead at a step, given where it led the nudged runs."""
    near = [gap for gaps in nudged for at, gap in gaps[key].items() if at <= NUDGE_AHEAD * step]
    return NUDGE_FACTOR * max(near, default=0.0)
