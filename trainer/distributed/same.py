"""Facts that must be the same on every rank."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

import xxhash


def same_on_all_ranks(
    facts: Mapping[str, str], gather: Callable[[Any], list[Any]], part: object = None
) -> str:
    """Compare facts between ranks: by a checksum, and by the facts only if the checksums differ.

    Collective: call on every rank. ``gather`` collects a value of every rank, in rank order.
    If ranks have different parts of a model, only those with the same ``part`` are compared.

    Returns:
        The first difference, as ``rank 1: lr is 0.1, rank 0: lr is 0.001``. Empty if there is none.
    """
    checksums = gather((part, xxhash.xxh3_64_intdigest(json.dumps([*facts.items()]).encode())))
    if len({*checksums}) == len(dict(checksums)):
        return ""

    of_ranks = gather(dict(facts))
    parts = [of_rank for of_rank, _ in checksums]
    for rank, own in enumerate(of_ranks):
        other = parts.index(parts[rank])
        for fact, theirs in zip_longest(
            own.items(), of_ranks[other].items(), fillvalue=("the rest", "missing")
        ):
            if fact != theirs:
                return f"rank {rank}: {' is '.join(fact)}, rank {other}: {' is '.join(theirs)}"
    return ""
