"""The order of an epoch, a function of (size, seed, epoch): a permutation kept whole, or computed
where it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any, Protocol

import numpy as np

Indices = np.ndarray[Any, np.dtype[np.int64]]
_Words = np.ndarray[Any, np.dtype[np.uint64]]

# Above it numpy's permutation costs each rank more than 8 MiB and 40 ms an epoch: 8 GB and minutes
# for 10**9 samples.
PERMUTED_UP_TO = 2**20


class Order(Protocol):
    """A permutation of range(size) that is read by slices, whose ends are within it."""

    def __getitem__(self, part: slice, /) -> Indices: ...


def epoch_order(size: int, seed: int, epoch: int) -> Indices:
    """Return the whole permutation of one epoch; the same on every rank, machine and layout."""
    return np.random.default_rng((seed, epoch)).permutation(size)


class FeistelOrder:
    """A permutation that is computed where it is read, at some 110 ns a sample; nothing of its size
    is kept.

    The number of a sample is written with two digits to a base whose square is just above the size.
    Six rounds add a hash of one digit and of the round's key to the other, modulo the base, which
    can be undone, so no two numbers meet. One that leaves the range, of which there are at most two
    a base, goes through the rounds again until it is back. (J. Black and P. Rogaway, Ciphers with
    Arbitrary Finite Domains, CT-RSA 2002: generalised Feistel network and cycle walking. The hash
    is the finalizer of SplitMix64: Steele, Lea and Flood, Fast Splittable Pseudorandom Number
    Generators, OOPSLA 2014.)

    Args:
        size: at most 2**62.
    """

    ahead = (
        2**14
        # indices that are computed at once: a short array costs 100 microseconds, and so does one of
        # 1,000
    )

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size, self._base = size, np.uint64(isqrt(size - 1) + 1)
        self._keys = np.random.SeedSequence((seed, epoch)).generate_state(6, np.uint64)
        self._first, self._block = 0, np.empty(0, np.int64)

    def __getitem__(self, part: slice, /) -> Indices:
        if part.start < self._first or part.stop > self._first + len(self._block):
            stop = min(self.size, max(part.stop, part.start + self.ahead))
            self._first, self._block = part.start, self.at(np.arange(part.start, stop))
        return self._block[part.start - self._first : part.stop - self._first]

    def at(self, positions: Indices) -> Indices:
        """Return what stands at these positions of the epoch."""
        indices = self._rounds(positions.astype(np.uint64))
        while (outside := indices >= self.size).any():
            indices[outside] = self._rounds(indices[outside])
        return indices.astype(np.int64)

    def _rounds(self, numbers: _Words) -> _Words:
        high, low = np.divmod(numbers, self._base)
        for key in self._keys:
            high, low = low, (high + (_hash(low ^ key) >> np.uint64(32))) % self._base
        return high * self._base + low


def _hash(words: _Words) -> _Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


# The names stand in checkpoints. A run keeps the order that it began with; where none is named it
# is the first.
ORDERS: Mapping[str, Callable[[int, int, int], Order]] = {
    "permutation": epoch_order,
    "feistel": FeistelOrder,
}


def order_for(size: int) -> str:
    """Name the order of a new run."""
    return "permutation" if size <= PERMUTED_UP_TO else "feistel"
