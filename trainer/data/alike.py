"""Streams are read by every rank from their beginning: whether all ranks read the same one."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError
from .batches import Window


def digest(item: Any) -> int:
    """Sum up the tensors, arrays, numbers and text in an item, in 32 bits; what is of another kind does not count."""
    if isinstance(item, Tensor):
        item = item.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() if item.numel() else ""
    if hasattr(item, "tobytes"):  # an array, an image
        return zlib.crc32(item.tobytes())
    if isinstance(item, str | bytes | int | float | complex):
        return zlib.crc32(item if isinstance(item, bytes) else repr(item).encode(errors="backslashreplace"))
    parts = item.items() if isinstance(item, Mapping) else item if isinstance(item, list | tuple) else ()
    return zlib.crc32(repr([digest(part) for part in parts]).encode())


def held_alike(windows: Iterable[Window], gather: Callable[[int], list[int]]) -> Iterator[Window]:
    """Yield windows; before the first one the ranks compare what they have read. Collective.

    Raises:
        DataError: another rank began with other samples: some would come twice, and others never.
    """
    left = iter(windows)
    for first in left:
        read = gather(first.read) if first.read else []
        for rank, other in enumerate(read):
            if other != read[0]:
                raise DataError(
                    f"Data.train: rank {rank} began with other samples than rank 0. Every rank reads the whole stream, "
                    "and the trainer divides it: leave out what divides it by rank (dist.get_rank(), "
                    "split_dataset_by_node), and draw what is random from a seed, or in Data.augment"
                )
        yield first
        yield from left
