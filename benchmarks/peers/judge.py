"""What the times and the weights of a run say: ratios with their intervals, and reasons not to
believe them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from math import inf, isnan
from statistics import median

from torch import Tensor

CONTROL = 0.03  # how far from 1 the reference may be from itself
# cores that a contender may use while others have their turns: a watch that looks twice a second
IDLE = 0.02
# How far a tensor may end from the reference's, in parts of its way. Gradients that are rounded
# differently at each step end at 8e-7 (MLP, 3,011 steps) and 6e-6 (GPT, 47). Where the MLP's last
# batch is another one it ends at 6e-4, with a tenth more decay at 1e-3, with the schedule a step
# early at 6e-3, where biases decay at 4e-2; two batches that change places in the middle are
# forgotten by the end (2e-5).
SAME = 1e-4
RESAMPLES = 2000


def ratio(seconds: Sequence[float], reference: Sequence[float]) -> tuple[float, float, float]:
    """Return the median of the ratios in the same rounds, and the ends of its 95 % interval."""
    ratios = [one / other for one, other in zip(seconds, reference, strict=True)]
    return median(ratios), *interval(ratios)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the 95 % interval of the median, by bootstrap."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[RESAMPLES * 25 // 1000], medians[RESAMPLES * 975 // 1000 - 1]


def control_problem(name: str, middle: float) -> str:
    """Say why no ratio of the run can be believed; "" where the reference is as fast as itself."""
    if abs(middle - 1) <= CONTROL:
        return ""
    return f"{name} is at {middle:.3f} of itself, further than {CONTROL:.0%} from 1: the machine was not quiet"


def apart(
    weights: Mapping[str, Tensor], reference: Mapping[str, Tensor], start: Mapping[str, Tensor]
) -> dict[str, float]:
    """Return how far each tensor is from the reference's, in parts of the way that this one went
    since the start.
    """
    if weights.keys() != reference.keys():
        return {name: inf for name in sorted(weights.keys() ^ reference.keys())}
    return {
        name: float((weights[name] - other).norm() / (other - start[name]).norm())
        for name, other in reference.items()
    }


def weight_problem(name: str, distances: Mapping[str, float]) -> str:
    """Say which tensor shows that a contender did other work; "" where none does."""
    tensor, most = max(distances.items(), key=lambda one: inf if isnan(one[1]) else one[1])
    if most <= SAME:
        return ""
    return f"{name} did other work: {tensor} is {most:.1e} of its way from the reference's, {SAME:.0e} is allowed"


def idle_problem(name: str, cores: float) -> str:
    """Say that a contender worked while others had their turns; "" where it did not."""
    if cores <= IDLE:
        return ""
    return f"{name} used {cores:.1%} of a core while others had their turns, {IDLE:.0%} is allowed"
