"""Comparing facts between ranks: by one number, and by the facts only where it differs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import xxhash

from ..config.plain import plain
from ..distributed.agreement import Agreement

Facts = dict[str, str]  # values by what they are of, both for people


def differences(facts: Facts, agreement: Agreement) -> tuple[list[str], list[Facts]]:
    """Compare facts between ranks. Collective: call on every rank.

    Returns:
        The names of facts that some rank has otherwise than rank 0, in order; where only the order
        differs, the first name that has another place. And the facts of all ranks. Both are empty
        where nothing differs.
    """
    checksum = xxhash.xxh3_64_intdigest(json.dumps([*facts.items()]).encode())
    checksums = agreement.gather(checksum)
    if len(set(checksums)) == 1:
        return [], []

    of_ranks = agreement.gather(facts)
    names = dict.fromkeys(name for others in of_ranks for name in others)
    first = of_ranks[0]
    different = []
    for name in names:
        if any(others.get(name) != first.get(name) for others in of_ranks):
            different.append(name)
    if not different:
        different = [_first_in_another_order(of_ranks)]
    return different, of_ranks


def _first_in_another_order(of_ranks: Sequence[Facts]) -> str:
    """Return the first name of rank 0 for which a rank, with equal facts, has another name."""
    for place, name in enumerate(of_ranks[0]):
        if any(list(facts)[place] != name for facts in of_ranks):
            return name
    raise AssertionError("the order is the same on all ranks")


def described(name: str, of_ranks: Sequence[Facts]) -> str:
    """Return who differs from rank 0, as ``rank 1: lr is 0.1, rank 0: 0.001``."""
    first = of_ranks[0].get(name, "missing")
    for rank, facts in enumerate(of_ranks):
        value = facts.get(name, "missing")
        if value != first:
            return f"rank {rank}: {name} is {value}, rank 0: {first}"

    place = list(of_ranks[0]).index(name)
    for rank, facts in enumerate(of_ranks):
        other = list(facts)[place]
        if other != name:
            return f"rank {rank}: in another order: {other} stands where rank 0 has {name}"
    raise AssertionError(f"{name} is the same on all ranks")


def flat(prefix: str, values: Mapping[str, Any]) -> Facts:
    """Return nested values as facts: keys are joined by dots behind the prefix."""
    found: Facts = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(f"{prefix}{key}.", value)
        elif isinstance(value, str):
            found[f"{prefix}{key}"] = value
        else:
            found[f"{prefix}{key}"] = json.dumps(plain(value, compared=True))
    return found
