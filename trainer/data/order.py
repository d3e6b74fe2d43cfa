"""The order in which an epoch visits the samples: a permutation that follows from (seed, epoch).

Nothing in this file knows how many ranks there are: ``batches.py`` divides the samples of a step.
So a run that is resumed on another layout trains on the same samples.

    >>> epoch_order(10, seed=0, epoch=1)
    array([9, 1, 3, 8, 7, 6, 0, 4, 2, 5])
    >>> epoch_order(10, seed=0, epoch=1)[4:8]  # at position 14, with a global batch of 4
    array([7, 6, 0, 4])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from .batches import Layout

Indices = np.ndarray[Any, np.dtype[np.int64]]

# Beyond this size numpy's permutation costs each rank more than 8 MiB and 40 ms an epoch: 8 GB and
# minutes for 10**9 samples.
PERMUTED_UP_TO = 2**20


class Order(Protocol):
    """The samples at the places of an epoch, read by slices with ends in the epoch."""

    def __getitem__(self, part: slice, /) -> Indices: ...


class OwnOrder(Protocol):
    """The order of a data set that has one, as its attribute ``own_order``.

    If the order of an epoch has ``of_rank(taken, layout)``, this method cuts a step over the ranks.

    Attributes:
        places: samples of an epoch. None: the first epoch never ends.
        text: facts that decide the order, which ranks and a resumed run must share.
        most_workers: loading processes of a rank at most. None: any number.
    """

    places: int | None
    most_workers: int | None

    @property
    def text(self) -> str: ...

    def lay_out(self, layout: Layout) -> None:
        """Prepare for the layout of a run, which must not decide the order of a resumed run."""

    def of_epoch(self, seed: int, epoch: int) -> Order:
        """Return the order of an epoch."""

    def logged(self, seed: int, begin: int, end: int) -> dict[str, float]:
        """Return values for the log about the samples between two positions."""

    def notices(self, seed: int, samples: int) -> list[str]:
        """Return lines for the banner of a run over so many samples."""

    def state(self) -> Any:
        """Return facts that decide the order, as JSON, for checkpoints."""

    def restore(self, state: Any, position: int) -> None:
        """Keep the order of a checkpoint up to ``position``."""


def epoch_order(size: int, seed: int, epoch: int) -> Indices:
    """Return the permutation of an epoch, the same on every rank, machine and layout."""
    return np.random.default_rng((seed, epoch)).permutation(size)


ORDERS = ("permutation", "feistel")


def order_of(name: str) -> Callable[[int, int, int], Order]:
    """Return an order by its name in ``ORDERS``, which checkpoints hold."""
    if name == "permutation":
        return epoch_order

    from .feistel import FeistelOrder

    return FeistelOrder


def order_for(size: int) -> str:
    """Return the name of the order that a new run takes for a data set of this size."""
    return "permutation" if size <= PERMUTED_UP_TO else "feistel"
