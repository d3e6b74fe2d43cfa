"""The order in which an epoch visits the samples: a permutation that follows from (seed, epoch).

No order depends on the number of ranks: ``batches.py`` divides the samples of a step. So a run that
is resumed on another layout trains on the same samples.

    >>> epoch_order(10, 0, 1)
    array([9, 1, 3, 8, 7, 6, 0, 4, 2, 5])
    >>> epoch_order(10, 0, 1)[4:8]  # at position 14, with a global batch of 4
    array([7, 6, 0, 4])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .batches import Layout, parts_of_rank

Indices = NDArray[np.int64]

# Beyond this size numpy's permutation costs each rank more than 8 MiB and 40 ms an epoch: 8 GB and
# minutes for 10**9 samples.
PERMUTED_UP_TO = 2**20
ENDLESS = 2**40  # places of an epoch that never ends


class Order(Protocol):
    """The samples at places of an epoch."""

    def __call__(self, places: Indices, /) -> Indices: ...


class OwnOrder:
    """The order of a data set that has one, as its attribute ``own_order``.

    Attributes:
        places: samples of an epoch.
        readers: loading processes that share each micro-batch.
        text: facts that decide the order, which ranks and a resumed run must share.
    """

    places: int
    readers: int = 1
    text: str = ""

    def lay_out(self, layout: Layout, workers: int) -> None:
        """Prepare for the layout of a run, which must not decide the order of a resumed run."""

    def of_epoch(self, seed: int, epoch: int) -> Order:
        """Return the order of an epoch."""
        raise NotImplementedError

    def parts(self, taken: range, layout: Layout) -> Sequence[Sequence[int]]:
        """Return the places of a rank's micro-batches in a step over the places ``taken``."""
        return [*parts_of_rank(taken, layout)]

    def shares(self, part: Sequence[int], layout: Layout) -> Sequence[Sequence[int]]:
        """Cut the places of a micro-batch by the loading process that reads their samples."""
        return [part]

    def logged(self, begin: int, end: int) -> dict[str, float]:
        """Return values for the log about the samples between two positions."""
        return {}

    def notices(self, samples: int) -> list[str]:
        """Return lines for the banner of a run over so many samples."""
        return []

    def state(self) -> Any:
        """Return facts that decide the order, as JSON, for checkpoints."""

    def restore(self, state: Any, position: int) -> None:
        """Keep the order of a checkpoint up to ``position``."""


class Permuted(OwnOrder):
    """The order of a data set without an order of its own."""

    def __init__(self, size: int) -> None:
        self.places = size
        self.name = "permutation" if size <= PERMUTED_UP_TO else "feistel"

    def of_epoch(self, seed: int, epoch: int) -> Order:
        if self.name == "permutation":
            return epoch_order(self.places, seed, epoch).take

        from .feistel import feistel_order

        return feistel_order(self.places, seed, epoch)

    def state(self) -> str:
        return self.name

    def restore(self, state: Any, position: int) -> None:
        """Take the order of the checkpoint, even if a new run would take another order."""
        assert state in ("permutation", "feistel"), "no order of the data"
        self.name = state


def epoch_order(size: int, *key: int) -> Indices:
    """Return the permutation of a seed, an epoch and a part, the same on every machine."""
    return np.random.default_rng(key).permutation(size)
