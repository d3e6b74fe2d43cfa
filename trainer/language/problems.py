"""Errors in the settings or the data of a language task, in one line: key, value, rule."""

from __future__ import annotations

from ..errors import ConfigError, Origin, Problem


def setting_error(key: str, value: object, rule: str) -> ConfigError:
    """Return the error for a setting below ``task_settings``, or for a place in the data."""
    return ConfigError(
        Problem(origin=Origin("language task", key=f"task_settings.{key}"), value=value, rule=rule)
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's type if there is no message."""
    line, _, _ = str(error).strip().partition("\n")
    return line.rstrip(".") or type(error).__name__
