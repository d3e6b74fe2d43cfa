"""Streams are read in blocks, each of which draws its random numbers from a seed of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from .rng import temporarily_seeded


def blocks(
    stream: Iterable[Any], size: int, *seed: int, offset: int = 0, stop: int = 0
) -> Iterator[list[Any]]:
    """Yield the samples of a stream in lists of ``size``. The last one may be shorter.

    While a block is read, Python's, numpy's and torch's global generators are seeded from ``seed``
    and the number of the block's first sample. So a stream that shuffles or adds noise with them
    yields the same samples on every rank and in a resumed run. This costs some 0.1 ms a block.

    Args:
        offset: the number of the sample that the stream yields first.
        stop: a sample number where a block must end, because the run that is resumed began a block
            there. The block before it is shorter where ``size`` does not divide the distance.
    """
    # chain() calls iter(stream) with the first block: it may draw, for the order of an epoch.
    samples = chain(stream)

    # What the resumed run read before: in blocks as well, so that the stream draws what it drew.
    while offset < stop:
        block = _read_block(samples, min(size, stop - offset), *seed, offset)
        if not block:
            return
        yield block
        offset += len(block)

    while True:
        block = _read_block(samples, size, *seed, offset)
        if not block:
            return
        yield block
        offset += len(block)


def _read_block(samples: Iterator[Any], count: int, *seed: int) -> list[Any]:
    with temporarily_seeded(*seed):
        return list(islice(samples, count))
