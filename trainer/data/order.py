"""The order in which an epoch visits the samples: a permutation that follows from (seed, epoch).

The position of a training is an integer, the samples that all ranks together have consumed since
the start. Divided by the size of the data set, the position gives the epoch and the place in the
order of that epoch:

    >>> epoch, place = divmod(14, 10)  # position 14 in a data set of 10 samples
    >>> epoch, place
    (1, 4)
    >>> epoch_order(10, seed=0, epoch=1)
    array([9, 1, 3, 8, 7, 6, 0, 4, 2, 5])
    >>> epoch_order(10, seed=0, epoch=1)[4:8]  # the next step, at a global batch of 4
    array([7, 6, 0, 4])

Nothing in this file knows how many ranks there are. ``batches.py`` divides these four samples: 7, 6
for rank 0 and 0, 4 for rank 1, or all of them for a single process. So a run that is resumed at
position 14 trains on the same samples on any layout.

Up to about a million samples the permutation is kept in memory. For larger data sets it is computed
on access.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

Indices = np.ndarray[Any, np.dtype[np.int64]]

# Beyond this size numpy's permutation costs each rank more than 8 MiB and 40 ms an epoch: 8 GB and
# minutes for 10**9 samples.
PERMUTED_UP_TO = 2**20


class Order(Protocol):
    """A permutation of range(size) that is read by slices with ends in the range."""

    def __getitem__(self, part: slice, /) -> Indices: ...


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
