"""The differences between the settings of a checkpoint and those of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ..text import hidden

_SET_BY_CONFIG = ("lr", "optimizer", "schedule", "schedule_settings", "schedule_class")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line ``key: before -> now`` for each difference.

    Of nested values only the parts that differ are shown. Of lists, the items that came or went.
    """
    lines = []
    for key in sorted(before.keys() | now.keys()):
        old: Any = before.get(key)
        new: Any = now.get(key)
        are_lists = isinstance(old, list) and isinstance(new, list)
        if are_lists and len(old) == len(new):
            if all(isinstance(item, Mapping) for item in (*old, *new)):
                old, new = ({str(n): item for n, item in enumerate(of)} for of in (old, new))
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += [f"{key}.{line}" for line in differences(old, new)]
        elif old != new:
            if are_lists:
                old, new = _without(old, new), _without(new, old)
            lines.append(f"{key}: {json.dumps(old):.60} -> {json.dumps(new):.60}")
    return lines


def _without(items: list[Any], others: list[Any]) -> list[Any]:
    return [item for item in items if item not in others]


def changed_settings(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    rates_before: Sequence[float],
    rates_now: Sequence[float],
) -> list[str]:
    """Return the differences between the settings of a checkpoint and those of this run.

    Args:
        before, now: as ``fingerprint`` returns them.
        rates_before, rates_now: the base learning rate of each group of the optimizer, which code
            may set. A change of the config's rate or schedule is reported under that key alone.
    """
    if any(before.get(key) != now.get(key) for key in _SET_BY_CONFIG):
        rates_before, rates_now = (), ()
    old = _with_rates(hidden(before), rates_before)  # commit 2aaecea wrote secrets
    return differences(old, _with_rates(now, rates_now))


def _with_rates(facts: Mapping[str, Any], rates: Sequence[float]) -> dict[str, Any]:
    """Add the rate to each of the optimizer's groups."""
    groups = [
        {"names": sorted(group["names"]), "settings": {"lr": rate, **group["settings"]}}
        for group, rate in zip_longest(facts["optimizer_groups"], rates)
    ]
    return {**facts, "optimizer_groups": groups}
