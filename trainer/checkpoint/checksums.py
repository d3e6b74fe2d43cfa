"""A checksum of the weights that no checkpoint holds, the same on every layout."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..distributed.agreement import Agreement
from ..strategies.tensors import DTYPES
from .parts import Parts, assign_writers

_AT_A_TIME = 1 << 19  # elements: some megabytes
_MODULUS = 1 << 64
_ODD = 0x9E3779B97F4A7C1


def base_weights(parts: Parts, agreement: Agreement) -> str:
    """Return a checksum of the weights that no checkpoint holds.

    The checksum is the same on every layout of a precision. Collective: call on every rank.
    """
    dtype = DTYPES.get(parts.strategy.plan.mixed_precision, torch.float32)
    own = 0
    for shard, low, high in assign_writers(parts.frozen(stored=False)):
        checksum = content_sum(shard.tensor[low:high], shard.start + low, dtype)
        own += zlib.crc32(shard.name.encode()) * checksum
    sums = agreement.gather(own)
    return f"{sum(sums) % _MODULUS:016x}"


def content_sum(values: Tensor, start: int, dtype: torch.dtype) -> int:
    """Return the checksum of a flat part of a tensor. Those of all parts add up to the whole's.

    Args:
        start: of the part within the whole tensor, in elements.
        dtype: to which the values are rounded first.
    """
    width = 8 // dtype.itemsize  # elements of a word of 64 bits
    total = 0
    for low in range(0, values.numel(), _AT_A_TIME):
        part = values[low : low + _AT_A_TIME].to(dtype)
        # Neighbouring parts have the rest of the first and of the last word: zeros stand for them.
        first, before = divmod(start + low, width)
        words = pad(part, (before, -(before + len(part)) % width)).view(torch.int64)

        # Word p counts (2 p + 1) * _ODD times: an odd number, so that no single bit is lost when
        # integers wrap around.
        places = torch.arange(first, first + len(words), device=words.device)
        total += _ODD * int((words * (2 * places + 1)).sum())
    return total % _MODULUS
