"""Exponential moving average of the weights, kept by each rank for the shards that it owns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor


class Average:
    """``average = decay * average + (1 - decay) * weight`` after every optimizer step.

    Works on flat shards in full precision, so it costs each rank one more copy of what it owns,
    under every strategy. Without a decay there is none: nothing is kept, and the model is applied
    as it is.

    Args:
        live: the weights, as views that follow the model.
        write_back: makes the model compute with what they now hold.
    """

    def __init__(
        self, live: Sequence[Tensor], write_back: Callable[[], None], decay: float | None
    ) -> None:
        self.live, self.write_back, self.decay = list(live), write_back, decay
        self.average = [] if decay is None else [tensor.detach().clone() for tensor in live]

    def update(self) -> None:
        """Move on by one step."""
        if self.average and self.decay is not None:
            with torch.no_grad():
                torch._foreach_lerp_(self.average, self.live, 1.0 - self.decay)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Have the model compute with the average inside, and with its own weights again
        afterwards.
        """
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
        self.write_back()
