"""Which settings decide the numbers of a run, and how a checkpoint's differ from this run's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, Origin, Problem
from ..text import hidden, listed

_SET_BY_CONFIG = ("lr", "optimizer", "schedule", "schedule_settings", "schedule_class")


def changed_rates(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    schedule_before: Mapping[str, Any],
    schedule_now: Mapping[str, Any],
) -> list[str]:
    """Return one line for each group of parameters whose learning rate code has changed.

    A difference in the config's own rate or schedule is reported elsewhere, and nothing here.

    Args:
        before, now: as ``fingerprint`` returns them.
        schedule_before, schedule_now: as ``schedule_state`` returns them.
    """
    if any(before.get(key) != now.get(key) for key in _SET_BY_CONFIG):
        return []

    old = schedule_before["own"].get("base_lrs", [])
    new = schedule_now["own"].get("base_lrs", [])
    groups = now["optimizer_groups"]
    lines = []
    if len(old) == len(new) == len(groups):
        for old_rate, new_rate, group in zip(old, new, groups, strict=True):
            if old_rate != new_rate:
                lines.append(f"lr of {listed(sorted(group['names']))}: {old_rate} -> {new_rate}")
    return lines


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line ``key: before -> now`` for each difference.

    Of nested values only the parts that differ are shown. Of names, those that came or went.
    """
    lines = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue

        if key == "names":
            went = [name for name in old or () if name not in (new or ())]
            came = [name for name in new or () if name not in (old or ())]
            lines.append(f"{key}: now without {listed(went)}; now with {listed(came)}")
            continue

        if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            old = {str(number): item for number, item in enumerate(old)}
            new = {str(number): item for number, item in enumerate(new)}
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += [f"{key}.{line}" for line in differences(old, new)]
        else:
            lines.append(f"{key}: {json.dumps(old):.60} -> {json.dumps(new):.60}")
    return lines


def check_same(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    others: Sequence[str],
    *,
    allowed: bool,
    source: Path,
) -> list[str]:
    """Return the differences between two fingerprints, if differences are allowed.

    Args:
        others: differences that were found elsewhere.

    Raises:
        ConfigError: there are differences, and they are not allowed.
    """
    # Commit 2aaecea wrote secrets to checkpoints.
    found = differences(_with_joined_groups(hidden(before)), _with_joined_groups(now))
    found += others
    if found and not allowed:
        rule = (
            f"the checkpoint {source} belongs to a run with other numbers; restore these values, "
            "or set allow_config_change: true to continue with the new ones: "
            f"{'; '.join(found)}"
        )
        raise ConfigError(Problem(origin=Origin("resume", key="allow_config_change"), rule=rule))
    return found


def _with_joined_groups(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Join the optimizer's groups of the same settings: it makes no difference to a step."""
    names_of: dict[str, list[str]] = {}
    for group in facts["optimizer_groups"]:
        text = json.dumps(group["settings"], sort_keys=True)
        names_of.setdefault(text, []).extend(group["names"])

    groups = []
    for text, names in names_of.items():
        groups.append({"names": sorted(names), "settings": json.loads(text)})
    return {**facts, "optimizer_groups": groups}
