"""The order in which an epoch visits the samples: a permutation that follows from (seed, epoch).

The position of a training is one integer, the samples that all ranks together have consumed since
the start. Divided by the size of the data set, it gives the epoch and the place in its order:

    >>> epoch, place = divmod(14, 10)  # position 14 in a data set of 10 samples
    >>> epoch, place
    (1, 4)
    >>> epoch_order(10, seed=0, epoch=1)
    array([9, 1, 3, 8, 7, 6, 0, 4, 2, 5])
    >>> epoch_order(10, seed=0, epoch=1)[4:8]  # what the next step takes, at a global batch of 4
    array([7, 6, 0, 4])

Nothing in this file knows how many ranks there are. ``batches.py`` divides these four samples: 7, 6
for rank 0 and 0, 4 for rank 1, or all of them for a single process. So a run that is resumed at
position 14 trains on the same samples on any layout.

Up to about a million samples the permutation is kept in memory. For larger data sets it is computed
on access.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any, Protocol

import numpy as np

Indices = np.ndarray[Any, np.dtype[np.int64]]
_Words = np.ndarray[Any, np.dtype[np.uint64]]

# Beyond it numpy's permutation costs each rank more than 8 MiB and 40 ms an epoch: 8 GB and minutes
# for 10**9 samples.
PERMUTED_UP_TO = 2**20


class Order(Protocol):
    """A permutation of range(size) that is read by slices with ends inside of it."""

    def __getitem__(self, part: slice, /) -> Indices: ...


def epoch_order(size: int, seed: int, epoch: int) -> Indices:
    """Return the whole permutation of one epoch. The same on every rank, machine and layout."""
    return np.random.default_rng((seed, epoch)).permutation(size)


class FeistelOrder:
    """A permutation computed on access, in O(1) memory.

    It costs some 110 ns a sample.

    The number of a sample is written with two digits in a base whose square is at least the size.
    Each of six rounds adds a hash of one digit and of the round's key to the other digit, modulo
    the base. Such a round can be undone, so no two numbers are mapped to the same one. A result
    outside of the range (of which there are at most two per value of a digit) goes through the
    rounds again until it is inside.

    This is a generalised Feistel network with cycle walking: J. Black and P. Rogaway, Ciphers with
    Arbitrary Finite Domains, CT-RSA 2002. The hash is the finalizer of SplitMix64: Steele, Lea and
    Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.

    Args:
        size: of the data set, at most 2**62.
    """

    # Indices that are computed at once: 1,000 of them take the 100 microseconds that one takes.
    computed_at_once = 2**14

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        self._base = np.uint64(isqrt(size - 1) + 1)
        self._keys = np.random.SeedSequence((seed, epoch)).generate_state(6, np.uint64)

        # The indices that were computed last, and the place of the first of them.
        self._block = np.empty(0, np.int64)
        self._block_start = 0

    def __getitem__(self, part: slice, /) -> Indices:
        block_stop = self._block_start + len(self._block)
        if part.start < self._block_start or part.stop > block_stop:
            stop = max(part.stop, part.start + self.computed_at_once)
            places = np.arange(part.start, min(stop, self.size))
            self._block = self.at(places)
            self._block_start = part.start

        return self._block[part.start - self._block_start : part.stop - self._block_start]

    def at(self, places: Indices) -> Indices:
        """Return the samples at these places of the epoch."""
        indices = self._rounds(places.astype(np.uint64))

        outside = indices >= self.size
        while outside.any():
            indices[outside] = self._rounds(indices[outside])
            outside = indices >= self.size
        return indices.astype(np.int64)

    def _rounds(self, numbers: _Words) -> _Words:
        high, low = np.divmod(numbers, self._base)
        for key in self._keys:
            added = _hash(low ^ key) >> np.uint64(32)
            high, low = low, (high + added) % self._base
        return high * self._base + low


def _hash(words: _Words) -> _Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


# Checkpoints hold these names: a run keeps the order that it began with.
ORDERS: Mapping[str, Callable[[int, int, int], Order]] = {
    "permutation": epoch_order,
    "feistel": FeistelOrder,
}


def order_for(size: int) -> str:
    """Return the name of the order that a new run takes for a data set of this size."""
    return "permutation" if size <= PERMUTED_UP_TO else "feistel"
