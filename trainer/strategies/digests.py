"""64-bit digests of tensors, the same on every layout: those of parts add up to the digest of all.

The digest is the sum, modulo 2**64, of the bits of the tensor's elements, each times an odd number
of its place. So a change of a single element always changes the digest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from .base import Strategy


def at_a_time(device: torch.device) -> int:
    """Return the elements of a pass, which stay in the cache of a CPU. A GPU takes large parts."""
    return 1 << (15 if device.type == "cpu" else 22)


def digest(values: Tensor, start: int = 0) -> Tensor:
    """Return the digest of a part of a tensor in float32, as ``content_sum`` does."""
    # A word has the bits of an element: the highest bits of two words could make up for each other.
    return content_sum(values.float().view(torch.int32), start, torch.int64)


def content_sum(values: Tensor, start: int, dtype: torch.dtype) -> Tensor:
    """Return the sum of a part's words of 64 bits, as a signed number on the device of the part.

    Args:
        values: the part, which counts in ``dtype``.
        start: the place of its first element in the flat tensor.
    """
    flat = values.reshape(-1)
    width = 8 // dtype.itemsize  # elements of a word
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    # Not kept: a GPU would hold 32 MiB.
    words_at_most = min(at_a_time(flat.device), flat.numel() // width + 2)
    odd_numbers = 2 * torch.arange(words_at_most, device=flat.device) + 1
    for part in torch.split(flat, at_a_time(flat.device)):
        # Neighbouring parts have the rest of the first and of the last word: zeros stand for them.
        first, before = divmod(start, width)
        start += part.numel()
        words = pad(part.to(dtype), (before, -start % width)).view(torch.int64)
        odd = odd_numbers[: words.numel()]
        total += torch.dot(words, odd) if words.is_cpu else (words * odd).sum()  # no dot on a GPU
        if first:
            total += 2 * first * words.sum()
    return total


def parts_of_digests(strategy: Strategy, values: Sequence[Tensor] = ()) -> Tensor:
    """Return this rank's part of the digest of each trainable parameter, or of values like it.

    Args:
        values: this rank's parts, in the order of the shards. By default the weights.
    """
    parts = []
    for number, shard in enumerate(strategy.shards()):
        part = values[number] if values else shard.tensor
        # Of the ranks that have the same part the first counts.
        parts.append(digest(part.view(-1)[: 0 if shard.copy else None], shard.start))
    return torch.stack(parts)


def summed(digests: Tensor, world: int) -> list[str]:
    """Add up the parts of all ranks, and return the digests as text. Collective."""
    if world > 1:
        dist.all_reduce(digests)
    return [f"{number % (1 << 64):016x}" for number in digests.tolist()]
