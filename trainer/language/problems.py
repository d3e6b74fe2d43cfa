"""What a user of the language tasks can get wrong, as one line: value, rule, key."""

from __future__ import annotations

from ..errors import ConfigError, Origin, Problem


def setting_error(key: str, value: object, rule: str) -> ConfigError:
    """Return the error for a setting of a language task.

    Args:
        key: below ``task_settings``.
    """
    return ConfigError(
        Problem(origin=Origin("language task", key=f"task_settings.{key}"), value=value, rule=rule)
    )


def first_line(error: BaseException) -> str:
    """Return the first line of what a library says, or its type where it says nothing."""
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
