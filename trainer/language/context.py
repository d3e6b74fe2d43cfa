"""Context parallelism: the processes of a group share rows, and each computes a part of the tokens.

Only attention needs the other tokens. There the processes exchange: from all heads of some tokens
to all tokens of some heads, and back (Jacobs et al. 2023, "DeepSpeed Ulysses"). Everything else is
data parallelism over tokens, whose gradients are averaged over all processes, as always.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ..private.torch import exchanged
from .varlen import Whole


class Group(Whole):
    """The processes that share rows, of which each computes a part of the tokens.

    Args:
        size: of a group, of neighbouring processes. Collective: make it on every rank.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.group, _ = dist.new_subgroups(size)  # type: ignore[no-untyped-call]
        self.number = dist.get_rank(self.group)

    def gather(self, heads: Tensor) -> Tensor:
        return self._exchange(heads, 1, 2)

    def scatter(self, heads: Tensor) -> Tensor:
        return self._exchange(heads, 2, 1)

    def sum(self, values: Tensor) -> Tensor:
        # Each process has the same loss of the sum, so gradients add up too.
        return exchanged(values.repeat(self.size, 1), None, None, self.group).sum(0)

    def _exchange(self, heads: Tensor, given: int, taken: int) -> Tensor:
        """Exchange parts of one dimension for parts of another. Heads are 1, tokens 2."""
        parts = torch.stack(heads.chunk(self.size, given))
        return torch.cat(list(exchanged(parts, None, None, self.group)), taken)
