"""The rules that wrong settings break, out of pydantic's error."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection
from typing import Any

from pydantic import ValidationError

from ..text import did_you_mean


def broken_rules(
    error: ValidationError, data: object, known: Collection[str]
) -> dict[str, tuple[str, Any]]:
    """Return the rules that ``data`` breaks and the wrong values, by dotted key."""
    found: dict[str, list[Any]] = {}
    for details in error.errors(include_url=False):
        found.setdefault(_key_of(details, data), []).append(details)

    problems = {}
    for key, several in found.items():
        # If a value fits no member of a union, a mistake inside of it says the most.
        if not any(other.startswith(f"{key}.") for other in found):
            rules = dict.fromkeys(_rule_of(details, known) for details in several)
            value = None if several[0]["type"] == "missing" else several[0]["input"]
            problems[key] = (" or ".join(rules), value)
    return problems


def _key_of(details: Any, data: Any) -> str:
    """Return the dotted key of an error. pydantic's location also names the members of unions."""
    key = ""
    for part in details["loc"]:
        with contextlib.suppress(KeyError, IndexError, TypeError):
            data = data[part]
            key = _joined(key, str(part))
    return _joined(key, str(details["loc"][-1])) if details["type"] == "missing" else key


def _rule_of(details: Any, known: Collection[str]) -> str:
    """Return the rule that a value breaks: pydantic's own words, or those of a ValueError."""
    if details["type"] == "extra_forbidden":
        name, *below = details["loc"]
        return "unknown key" if below else f"unknown key; {did_you_mean(name, known)}"
    if details["type"] == "missing":
        return "is required"
    rule = str(details.get("ctx", {}).get("error") or details["msg"])
    return re.sub("^(Input|String) should", "must", rule)


def _joined(*keys: str) -> str:
    return ".".join(filter(None, keys))
