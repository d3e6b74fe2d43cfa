"""Streams are read in blocks, each of which draws random numbers from a seed of that block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from .rng import temporarily_seeded


def blocks(
    stream: Iterable[Any], size: int, *seed: int, offset: int = 0, stop: int = 0
) -> Iterator[list[Any]]:
    """Yield the samples of a stream in lists of ``size``. The last list may be shorter.

    While a block is read, Python's, numpy's and torch's global generators are seeded from ``seed``
    and the number of the block's first sample. So a stream that shuffles or adds noise yields the
    same samples on every rank and in a resumed run. This costs some 0.1 ms a block.

    Args:
        offset: the number of the sample that the stream yields first.
        stop: a sample number at which a block must end, because the resumed run began a block
            there.
    """
    # chain() calls iter(stream) with the first block: iter may draw, for the order of an epoch.
    samples = chain(stream)
    while True:
        # Samples of before the resumption are read in blocks too, to draw the same numbers.
        count = min(size, stop - offset) if offset < stop else size
        with temporarily_seeded(*seed, offset):
            block = list(islice(samples, count))
        if not block:
            return
        yield block
        offset += len(block)
