"""The rules that wrong settings break, from pydantic's error."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ..text import did_you_mean


def broken_rules(
    error: ValidationError, data: object, known: Mapping[str, Any]
) -> dict[str, tuple[str, Any]]:
    """Return the rules that ``data`` breaks and the wrong values, by dotted key."""
    problems: dict[str, tuple[str, Any]] = {}
    for details in error.errors(include_url=False):
        key = _key_of(details, data)
        rule = _rule_of(details, known)
        before, _ = problems.get(key, (rule, None))
        if rule not in before:  # each member of a union has an error of its own
            rule = f"{before} or {rule}"
        problems[key] = (rule, None if details["type"] == "missing" else details["input"])

    # If a value fits no member of a union, the mistake inside of the value says the most.
    return {
        key: problem
        for key, problem in problems.items()
        if not any(other.startswith(f"{key}.") for other in problems)
    }


def _key_of(details: Any, data: Any) -> str:
    """Return the dotted key of an error. pydantic's location also names the members of unions."""
    key: list[str] = []
    for part in details["loc"]:
        with contextlib.suppress(KeyError, IndexError, TypeError):
            data = data[part]
            key.append(str(part))
    if details["type"] == "missing":
        key.append(str(details["loc"][-1]))
    return ".".join(key)


def _rule_of(details: Any, known: Mapping[str, Any]) -> str:
    """Return the rule that a value breaks: pydantic's words, or those of a ValueError."""
    if details["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        name, *below = details["loc"]
        return "unknown key" if below else f"unknown key; {did_you_mean(name, known)}"
    if details["type"] == "missing":
        return "is required"
    if details["type"] == "string_pattern_mismatch":
        for note in getattr(known.get(details["loc"][-1]), "__metadata__", ()):
            if isinstance(note, str):
                return f"must have the form of the key: {note}"
    rule = str(details.get("ctx", {}).get("error") or details["msg"])
    return re.sub("^(Input|String) should", "must", rule)
