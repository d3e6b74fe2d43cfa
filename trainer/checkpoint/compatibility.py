"""What decides the numbers of a run, and what differs between a checkpoint and the run that
continues it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from ..config.fingerprint import fingerprint as of_settings
from ..errors import ConfigError, Origin, Problem
from ..text import hidden, listed
from .codec import encode_plain
from .parts import Parts

_OF_RATES = ("lr", "optimizer", "schedule", "schedule_settings", "schedule_class")


def fingerprint(parts: Parts) -> dict[str, Any]:
    """Return what must stay the same for the loss curve to go on as if nothing had happened, as
    JSON reads it back.
    """
    form = parts.optimizer_form
    built = {"optimizer": form.kind, "optimizer_groups": list(form.groups)}
    found = of_settings(
        {**parts.settings, **built, "schedule_class": type(parts.schedule).__name__}
    )
    # The groups say what these settings became; the weights to start with are the checkpoint's.
    del found["optimizer_settings"], found["weights"]
    plain: dict[str, Any] = encode_plain(found, "mathematics")
    return plain


def changed_rates(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    schedule_before: Mapping[str, Any],
    schedule: Mapping[str, Any],
) -> list[str]:
    """List the rates from which the schedule starts that code has changed for some parameters, in
    one line each.

    Where the config's own rate or schedule is another one, that is told already, and nothing is
    listed.

    Args:
        before, now: facts, as ``fingerprint`` returns them.
        schedule_before, schedule: as ``schedule_state`` returns them.
    """
    if any(before.get(key) != now.get(key) for key in _OF_RATES):
        return []
    old, new = _rates_by_name(before, schedule_before), _rates_by_name(now, schedule)
    changed: dict[tuple[float, float], list[str]] = {}
    for name in old.keys() & new.keys():
        if old[name] != new[name]:
            changed.setdefault((old[name], new[name]), []).append(name)
    return [
        f"lr of {listed(sorted(names))}: {one} -> {other}"
        for (one, other), names in sorted(changed.items())
    ]


def _rates_by_name(facts: Mapping[str, Any], schedule: Mapping[str, Any]) -> dict[str, float]:
    groups, rates = facts["optimizer_groups"], _base_rates(schedule["own"])
    if len(groups) != len(rates):
        return {}
    return {
        name: rate for group, rate in zip(groups, rates, strict=True) for name in group["names"]
    }


def _base_rates(own: Mapping[str, Any]) -> list[float]:
    """Return the rates of the groups before a schedule moves them; of several, one behind the
    other, the first's.
    """
    if "base_lrs" in own:
        rates: list[float] = own["base_lrs"]
        return rates
    if "_schedulers" in own:
        return _base_rates(own["_schedulers"][0])
    return []


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List ``key: before -> now`` in one line each; of nested values only the parts that differ, of
    names those that came or went.
    """
    lines = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if old != new and _are_names(old) and _are_names(new) and set(old) != set(new):
            lines.append(f"{key}: {_moved(old, new)}")
            continue
        if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            old, new = (
                {str(number): item for number, item in enumerate(items)} for items in (old, new)
            )
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += [f"{key}.{line}" for line in differences(old, new)]
        elif old != new:
            lines.append(f"{key}: {_short(old)} -> {_short(new)}")
    return lines


def check_same(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    others: Sequence[str],
    *,
    allowed: bool,
    source: Path,
    advice: str = "",
) -> list[str]:
    """Return the differences and ``others`` that were found elsewhere, where they are allowed.

    Args:
        advice: a text behind them, about where the values of now come from.

    Raises:
        ConfigError: there are some, and they are not allowed.
    """
    # Earlier versions wrote secrets down.
    found = [*differences(_joined(hidden(before)), _joined(hidden(now))), *others]
    if found and not allowed:
        rule = (
            f"the checkpoint {source} belongs to a run with other numbers; restore these values, or set "
            f"allow_config_change: true to go on with the new ones: {'; '.join(found)}{advice}"
        )
        raise ConfigError(Problem(origin=Origin("resume", key="allow_config_change"), rule=rule))
    return found


def _joined(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Join the optimizer's groups of the same settings: they are stepped alike, however many they
    are.
    """
    named: dict[str, list[str]] = {}
    for group in facts["optimizer_groups"]:
        named.setdefault(json.dumps(group["settings"], sort_keys=True), []).extend(group["names"])
    groups = [
        {"names": sorted(names), "settings": json.loads(said)} for said, names in named.items()
    ]
    return {**facts, "optimizer_groups": groups}


def _are_names(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _moved(old: list[str], new: list[str]) -> str:
    """Say which names are there no more, and which are new."""
    gone = [name for name in old if name not in set(new)]
    came = [name for name in new if name not in set(old)]
    parts = (("without", gone), ("with", came))
    return "; ".join(f"now {word} {listed(names)}" for word, names in parts if names)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
