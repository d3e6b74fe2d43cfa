"""What decides the numbers of a run, and what differs between a checkpoint and the run that continues it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.fingerprint import fingerprint as of_settings
from ..errors import ConfigError, Origin, Problem
from .codec import encode_plain
from .parts import Parts


def fingerprint(parts: Parts) -> dict[str, Any]:
    """Return what must stay the same for the loss curve to go on as if nothing had happened, as JSON reads it back."""
    form = parts.optimizer_form
    built = {"optimizer": form.kind, "optimizer_groups": list(form.groups)}
    found = of_settings({**parts.settings, **built, "schedule_class": type(parts.schedule).__name__})
    # The groups say what these settings became; the weights to start with are the checkpoint's.
    del found["optimizer_settings"], found["weights"]
    plain: dict[str, Any] = encode_plain(found, "mathematics")
    return plain


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """List ``key: before -> now`` in one line each; of nested values only the parts that differ."""
    lines = []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            old, new = ({str(number): item for number, item in enumerate(items)} for items in (old, new))
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += [f"{key}.{line}" for line in differences(old, new)]
        elif old != new:
            lines.append(f"{key}: {_short(old)} -> {_short(new)}")
    return lines


def check_same(
    before: Mapping[str, Any], now: Mapping[str, Any], others: Sequence[str], *, allowed: bool, source: Path
) -> list[str]:
    """Return the differences and ``others`` that were found elsewhere, where they are allowed.

    Raises:
        ConfigError: there are some, and they are not allowed.
    """
    found = [*differences(_joined(before), _joined(now)), *others]
    if found and not allowed:
        rule = (
            f"the checkpoint {source} belongs to a run with other numbers; restore these values, or set "
            f"allow_config_change: true to go on with the new ones: {'; '.join(found)}"
        )
        raise ConfigError(Problem(origin=Origin("resume", key="allow_config_change"), rule=rule))
    return found


def _joined(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Join the optimizer's groups of the same settings: they are stepped alike, however many they are."""
    named: dict[str, list[str]] = {}
    for group in facts["optimizer_groups"]:
        named.setdefault(json.dumps(group["settings"], sort_keys=True), []).extend(group["names"])
    groups = [{"names": sorted(names), "settings": json.loads(said)} for said, names in named.items()]
    return {**facts, "optimizer_groups": groups}


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
