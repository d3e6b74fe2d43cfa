"""Settings of a launch file that change nothing: one notice for all of them, never an error."""

from __future__ import annotations

from collections.abc import Iterable

from ...config.validate import Validator
from ...errors import Sourced

_OFF = (None, False, -1, 0, 1, "", "no", "none", "auto")


def is_switched_on(value: object) -> bool:
    """Return whether a setting asks for something; a section may be switched off by ``enabled``."""
    if isinstance(value, dict):
        return value.get("enabled", True) is not False
    if isinstance(value, list):
        return bool(value)
    return value is True or value not in _OFF


def note_unused(entries: Iterable[Sourced[object]], reason: str, check: Validator) -> None:
    """Add a notice that names the settings among ``entries`` that are switched on.

    Args:
        reason: why they change nothing, such as ``no effect in stage 2``.
    """
    switched_on = [entry for entry in entries if is_switched_on(entry.value)]
    check.idle(switched_on, reason)
