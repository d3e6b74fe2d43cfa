"""The data that every rank must have alike, because the trainer divides the data.

Data sets with an index are compared by three of their samples (``samples.py``), streams by their
first two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..distributed.same import same_on_all_ranks
from ..errors import DataError

SAME_DATA = (
    "build_data must give every rank the same data, which the trainer divides: do not shard it by "
    "rank (no DistributedSampler, no rows[rank::world_size], no split_dataset_by_node), sort what "
    "comes from a set, and seed generators of your own"
)


def check_same_data(facts: Mapping[str, str], gather: Callable[[Any], list[Any]]) -> None:
    """Raise ``DataError`` if facts of the data differ between ranks. Collective."""
    difference = same_on_all_ranks(facts, gather)
    if difference:
        raise DataError(f"{difference}: {SAME_DATA}")


def check_same_beginning(digest: int, name: str, gather: Callable[[Any], list[Any]]) -> None:
    """Raise ``DataError`` if the first samples of a stream differ between ranks. Collective.

    Args:
        digest: of this rank's first samples.
        name: of the stream, for the message.
    """
    fact = f"the beginning of {name}, of which every rank reads the whole,"
    check_same_data({fact: f"{digest:08x}"}, gather)
