"""The samples and parameters behind a number that is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain, compress

from ..hooks import StepInfo
from ..run import Run
from ..text import listed

_SHOWN = 8  # samples in a message


def cause_of(run: Run, info: StepInfo) -> str:
    """Return step, rank and samples whose loss is not finite. Collective: call on every rank."""
    samples = run.train_data.parts(info.began, info.samples)
    mine = [
        f"the loss on rank {run.agreement.rank} is {loss}, of {_named(numbers)}"
        for loss, numbers in zip(map(float, info.shares), samples, strict=True)
        if not math.isfinite(loss)
    ]
    names: list[str] = []
    if info.update.norms is not None:
        trained = dict(run.strategy.parameters())
        names = [*compress(trained, info.update.norms.isfinite().logical_not())]
    ranks = run.agreement.gather((mine, names[::-1], [*chain(*samples)]))
    losses, parameters, numbers = zip(*ranks, strict=True)
    named = listed(max(parameters, key=len))  # a rank may have no row of a parameter
    unknown = "an unknown parameter (this engine keeps no gradients: a single process names it)"
    of_gradient = (
        "the gradient is not finite, though the losses of all ranks are: of "
        f"{named or unknown}, in a step of {_named(chain(*numbers))}"
    )
    return f"step {info.step}: {next(chain(*losses), of_gradient)}"


def _named(numbers: Iterable[int]) -> str:
    return f"samples {listed([*map(str, numbers)], _SHOWN)} of Data.train"
