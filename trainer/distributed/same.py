"""Facts that must be the same on every rank."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import xxhash


def same_on_all_ranks(facts: Mapping[str, str], gather: Callable[[Any], list[Any]]) -> str:
    """Compare facts between ranks: by a checksum, and by the facts only if the checksums differ.

    Collective: call on every rank. ``gather`` collects a value of every rank, in rank order.

    Returns:
        The first difference, as ``rank 1: lr is 0.1, rank 0: 0.001``. Empty if there is none.
    """
    checksum = xxhash.xxh3_64_intdigest(json.dumps([*facts.items()]).encode())
    if len(set(gather(checksum))) == 1:
        return ""

    of_ranks = gather(dict(facts))
    first = of_ranks[0]
    for rank, own in enumerate(of_ranks):
        for name in {**first, **own}:
            value, of_rank_0 = own.get(name, "missing"), first.get(name, "missing")
            if value != of_rank_0:
                return f"rank {rank}: {name} is {value}, rank 0: {of_rank_0}"
        for name, of_rank_0 in zip(own, first, strict=True):
            if name != of_rank_0:
                return f"rank {rank}: in another order: {name} stands where rank 0 has {of_rank_0}"
    return ""
