"""Every rank has the same data: what identifies it, how it is drawn alike, and the words that say
that it differs.

Streams are read by every rank from their beginning: what they draw is the same on all, and all read
the same one. Data sets with an index are compared by a few of their samples (``samples.py``).
"""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .batches import Window
from .seeds import seed_of

SAME_DATA = (
    "build_data must give every rank the same data, which the trainer divides: do not shard it by rank (no "
    "DistributedSampler, no rows[rank::world_size], no split_dataset_by_node), sort what comes from a set, and seed "
    "generators of your own"
)


def blocks(
    stream: Iterable[Any], size: int, *seed: int, offset: int = 0, stop: int = 0
) -> Iterator[list[Any]]:
    """Yield lists of ``size`` samples, the last one shorter, of a stream whose next sample has the
    number ``offset``.

    What the stream draws meanwhile from Python's, numpy's and torch's global generators follows
    from ``seed`` and the number of the block's first sample: the same on every rank and in a run
    that goes on, at some 0.1 ms a block.

    Args:
        stop: a number at which a block ends, whatever its size: the first one of a run that goes on
            begins there.
    """
    rest = None
    while True:
        with drawing(*seed, offset):
            rest = iter(stream) if rest is None else rest
            count = min(size, stop - offset) if offset < stop else size
            block = [*islice(rest, count)]
        if not block:
            return
        yield block
        offset += len(block)


def draw_by(*seed: int) -> None:
    """Seed Python's, numpy's and torch's global generators; of torch's only that of the CPU."""
    word = seed_of(*seed)
    random.seed(word)
    np.random.seed(word)
    torch.default_generator.manual_seed(word)


@contextmanager
def drawing(*seed: int) -> Iterator[None]:
    """Have the process draw by a seed for a while, and then go on with what it drew before."""
    before: Any = random.getstate(), np.random.get_state(), torch.get_rng_state()
    draw_by(*seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def digest(item: Any) -> int:
    """Sum up the tensors, arrays, numbers and text in an item, in 32 bits; what is of another kind
    does not count.
    """
    if isinstance(item, Tensor):
        if item.is_nested or item.layout != torch.strided:
            item = item.coalesce().values() if item.is_sparse else item.values()
        plain = item.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        item = plain.view(torch.uint8).numpy() if plain.numel() else ""
    if getattr(getattr(item, "dtype", None), "hasobject", False):
        item = item.tolist()  # its bytes are addresses
    if hasattr(item, "tobytes"):  # an array, an image
        return zlib.crc32(item.tobytes())
    if isinstance(item, str | bytes | int | float | complex):
        return zlib.crc32(
            item if isinstance(item, bytes) else repr(item).encode(errors="backslashreplace")
        )
    if isinstance(item, set | frozenset):
        return zlib.crc32(
            repr(sorted(digest(part) for part in item)).encode()
        )  # whose order is another in each process
    return zlib.crc32(repr([digest(part) for part in _parts_of(item)]).encode())


def _parts_of(item: Any) -> Iterable[Any]:
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return [(field.name, getattr(item, field.name)) for field in dataclasses.fields(item)]
    if callable(getattr(item, "keys", None)) and hasattr(
        item, "__getitem__"
    ):  # a mapping, or as good as one
        return [(key, item[key]) for key in item.keys()]  # noqa: SIM118
    return item if isinstance(item, list | tuple) else ()


def held_alike(windows: Iterable[Window], gather: Callable[[int], list[int]]) -> Iterator[Window]:
    """Yield windows; before the first one the ranks compare what they have read. Collective.

    Raises:
        DataError: another rank began with other samples: some would come twice, and others never.
    """
    left = iter(windows)
    for first in left:
        if first.read:
            refuse_unlike(gather(first.read), "Data.train")
        yield first
        yield from left


def refuse_unlike(read: list[int], what: str) -> None:
    """Raise ``DataError`` where ranks have read different beginnings of one stream."""
    for rank, other in enumerate(read):
        if other != read[0]:
            raise DataError(
                f"rank {rank}: {what} begins with other samples than on rank 0. Every rank reads the whole stream: "
                f"{SAME_DATA}"
            )
