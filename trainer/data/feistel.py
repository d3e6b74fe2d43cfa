"""A permutation of a large data set that is computed on access."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
_Words = NDArray[np.uint64]


def feistel_order(size: int, seed: int, epoch: int) -> Callable[[Indices], Indices]:
    """Return a permutation computed on access, in O(1) memory.

    An access costs some 100 microseconds, and 110 ns a sample from 1,000 samples on.

    The number of a sample is written with two digits in a base whose square is at least the size.
    Each of six rounds adds a hash of a digit and of the round's key to the other digit, modulo the
    base, which can be undone. A result outside of the range goes through the rounds again.

    This is a generalised Feistel network with cycle walking: J. Black and P. Rogaway, Ciphers with
    Arbitrary Finite Domains, CT-RSA 2002. The hash is the finalizer of SplitMix64: Steele, Lea and
    Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014.

    Args:
        size: of the data set, at most 2**62.
    """
    base = np.uint64(isqrt(size - 1) + 1)
    keys = np.random.SeedSequence((seed, epoch)).generate_state(6, np.uint64)

    def rounds(numbers: _Words) -> _Words:
        high, low = np.divmod(numbers, base)
        for key in keys:
            added = _hash(low ^ key) >> np.uint64(32)
            high, low = low, (high + added) % base
        return high * base + low

    def order(places: Indices) -> Indices:
        indices = rounds(places.astype(np.uint64))
        while (outside := indices >= size).any():
            indices[outside] = rounds(indices[outside])
        return indices.astype(np.int64)

    return order


def _hash(words: _Words) -> _Words:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
