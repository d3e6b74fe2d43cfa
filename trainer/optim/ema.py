"""Exponential moving average of the weights, kept by each rank for the shards that it owns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ..strategies import Shard, Strategy


class Average:
    """``average = decay * average + (1 - decay) * weight`` after every optimizer step.

    Works on flat shards in full precision, so it costs each rank one more copy of what it owns, under every strategy.
    Without a decay there is none: nothing is kept, and the model is applied as it is.
    """

    def __init__(self, strategy: Strategy, decay: float | None) -> None:
        self.strategy, self.decay = strategy, decay
        # Shards are live views: taken once, they follow the weights.
        self.shards = [] if decay is None else [shard for shard in strategy.shards() if shard.tensor.numel()]
        self.live = [shard.tensor for shard in self.shards]
        self.average = [tensor.detach().clone() for tensor in self.live]

    @torch.no_grad()
    def update(self) -> None:
        """Move on by one step."""
        if self.live and self.decay is not None:
            torch._foreach_lerp_(self.average, self.live, 1.0 - self.decay)

    def parts(self) -> list[tuple[Shard, torch.Tensor]]:
        """Return the averages of the shards that this rank owns, live."""
        return list(zip(self.shards, self.average, strict=True))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Have the model compute with the average inside, and with its own weights again afterwards."""
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
            kept = live.clone()  # one tensor at a time
            live.copy_(average)
            average.copy_(kept)
        self.strategy.write_back()
