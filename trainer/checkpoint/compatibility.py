"""The differences between the settings of a checkpoint and those of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ..config.plain import dotted
from ..text import hidden

_SET_BY_CONFIG = ("lr", "optimizer", "schedule", "schedule_settings", "schedule_class")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line ``key: before -> now`` for each difference. Of lists, what came or went."""
    before, now = dict(dotted(before)), dict(dotted(now))
    lines = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if old != new:
            if isinstance(old, list) and isinstance(new, list):
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
    """Add the rate to each of the optimizer's groups, and number the groups."""
    groups = {
        str(number): {
            "names": sorted(group["names"]),
            "settings": {"lr": rate, **group["settings"]},
        }
        for number, (group, rate) in enumerate(zip_longest(facts["optimizer_groups"], rates))
    }
    return {**facts, "optimizer_groups": groups}
