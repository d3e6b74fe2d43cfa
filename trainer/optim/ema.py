"""Exponential moving average of the weights, kept by each rank for the shards of this rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn

if TYPE_CHECKING:
    from ..strategies import Strategy


class Average:
    """An average of the weights: ``average = decay * average + (1 - decay) * weight`` each step.

    The average is kept as flat shards in full precision, another copy of the rank's shards.

    Args:
        strategy: prepared. Its shards are views that follow the model.
        decay: of the average, between 0 and 1. None for no average.

    Attributes:
        pairs: each shard with its average. Empty without a decay.
    """

    def __init__(self, strategy: Strategy, decay: float | None) -> None:
        self._move = get_ema_multi_avg_fn(decay or 0.0)  # type: ignore[no-untyped-call]
        self.write_back = strategy.write_back
        shards = [*strategy.shards()] if decay else []
        self.live = [shard.tensor for shard in shards]
        self.average = [tensor.clone() for tensor in self.live]
        self.pairs = list(zip(shards, self.average, strict=True))

    def update(self) -> None:
        """Add the weights after an optimizer step that was not skipped."""
        if self.average:
            self._move(self.average, self.live, None)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Make the model compute with the average inside of the block, as for an evaluation."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        if not self.pairs:
            return
        for shard, average in self.pairs:
            weight = shard.tensor.clone()  # memory for one tensor at a time
            shard.tensor.copy_(average)
            average.copy_(weight)
        self.write_back()
