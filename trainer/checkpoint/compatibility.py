"""Which settings decide the numbers of a run, and how a checkpoint's differ from this run's."""

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

_SET_BY_CONFIG = ("lr", "optimizer", "schedule", "schedule_settings", "schedule_class")


def fingerprint(parts: Parts) -> dict[str, Any]:
    """Return what must stay the same for the loss curve to continue as if nothing had happened.

    It has the form in which JSON reads it back.
    """
    form = parts.optimizer_form
    built = {
        "optimizer": form.kind,
        "optimizer_groups": list(form.groups),
        "schedule_class": type(parts.schedule).__name__,
    }
    found = of_settings({**parts.settings, **built})
    # The groups hold what these settings became, and a checkpoint has weights of its own.
    del found["optimizer_settings"], found["weights"]
    plain: dict[str, Any] = encode_plain(found, "mathematics")
    return plain


def changed_rates(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    schedule_before: Mapping[str, Any],
    schedule_now: Mapping[str, Any],
) -> list[str]:
    """Return one line for each learning rate that code has changed for some parameters.

    If the config's own rate or schedule differs, that is reported elsewhere, and nothing here.

    Args:
        before, now: as ``fingerprint`` returns them.
        schedule_before, schedule_now: as ``schedule_state`` returns them.
    """
    if any(before.get(key) != now.get(key) for key in _SET_BY_CONFIG):
        return []

    old = _rates_by_name(before, schedule_before)
    new = _rates_by_name(now, schedule_now)
    changed: dict[tuple[float, float], list[str]] = {}
    for name in old.keys() & new.keys():
        if old[name] != new[name]:
            changed.setdefault((old[name], new[name]), []).append(name)

    lines = []
    for (old_rate, new_rate), names in sorted(changed.items()):
        lines.append(f"lr of {listed(sorted(names))}: {old_rate} -> {new_rate}")
    return lines


def _rates_by_name(facts: Mapping[str, Any], schedule: Mapping[str, Any]) -> dict[str, float]:
    """Return the rate of each parameter before the schedule changes it. Empty if not known."""
    groups = facts["optimizer_groups"]
    base_rates = _base_rates(schedule["own"])
    if len(groups) != len(base_rates):
        return {}

    rates: dict[str, float] = {}
    for group, rate in zip(groups, base_rates, strict=True):
        for name in group["names"]:
            rates[name] = rate
    return rates


def _base_rates(own: Mapping[str, Any]) -> list[float]:
    """Return the rates of the groups before a schedule changes them. Of a sequence, the first's."""
    if "base_lrs" in own:
        rates: list[float] = own["base_lrs"]
        return rates
    if "_schedulers" in own:
        return _base_rates(own["_schedulers"][0])
    return []


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line ``key: before -> now`` for each difference.

    Of nested values only the parts that differ are shown. Of lists of names, which came or went.
    """
    lines = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if old == new:
            continue

        if _are_names(old) and _are_names(new) and set(old) != set(new):
            lines.append(f"{key}: {_changed_names(old, new)}")
            continue

        if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            old, new = _by_number(old), _by_number(new)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += [f"{key}.{line}" for line in differences(old, new)]
        else:
            lines.append(f"{key}: {_short(old)} -> {_short(new)}")
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
    # Earlier versions wrote secrets to checkpoints.
    found = differences(_with_joined_groups(hidden(before)), _with_joined_groups(hidden(now)))
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


def _are_names(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _by_number(items: list[Any]) -> dict[str, Any]:
    return {str(number): item for number, item in enumerate(items)}


def _changed_names(old: list[str], new: list[str]) -> str:
    """Return which names went and which came."""
    went = [name for name in old if name not in set(new)]
    came = [name for name in new if name not in set(old)]
    changes = []
    if went:
        changes.append(f"now without {listed(went)}")
    if came:
        changes.append(f"now with {listed(came)}")
    return "; ".join(changes)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
