"""Exponential moving average of the weights, kept by each rank for the shards of this rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..private.torch import interpolate_all


class Average:
    """An average of the weights: ``average = decay * average + (1 - decay) * weight`` each step.

    The average is kept as flat shards in full precision, another copy of the rank's shards.

    Args:
        live: the weights, as views that follow the model.
        write_back: makes the model compute with the new values of the views.
        decay: of the average, below 1. None for no average.

    Attributes:
        average: a tensor for each of ``live``. Empty without a decay.
    """

    def __init__(
        self, live: Sequence[Tensor], write_back: Callable[[], None], decay: float | None
    ) -> None:
        self.live = list(live)
        self.write_back = write_back
        self.decay = decay
        self.average: list[Tensor] = []
        if decay is not None:
            self.average = [tensor.detach().clone() for tensor in live]

    def update(self) -> None:
        """Add the weights after an optimizer step that was not skipped."""
        if self.average and self.decay is not None:
            with torch.no_grad():  # as a decorator it would cost 3 us without an average
                interpolate_all(self.average, self.live, 1.0 - self.decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Make the model compute with the average inside of the block, as for an evaluation."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        if self.decay is None:
            return
        for live, average in zip(self.live, self.average, strict=True):
            weight = live.clone()  # memory for one tensor at a time
            live.copy_(average)
            average.copy_(weight)
        self.write_back()
