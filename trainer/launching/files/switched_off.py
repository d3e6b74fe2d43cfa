"""The keys of launch files that cannot run."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator


def is_on(value: Any) -> bool:
    """Return whether a setting asks for anything. ``enabled`` may switch a section off."""
    enabled = value.get("enabled", True) if isinstance(value, dict) else value
    return str(enabled).lower() not in ("none", "false", "-1", "0", "1", "[]")


def _refuse_if_on(value: Any) -> Any:
    if is_on(value):
        raise ValueError("not supported by samecurve; remove it")
    return value


Off = Annotated[Any, AfterValidator(_refuse_if_on)]
"""The type of a key that cannot run: its value may only say that it is off."""
