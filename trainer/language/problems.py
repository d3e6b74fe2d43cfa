"""Errors in the settings or the data of a language task, in one line: key, value, rule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ConfigError, Origin


def setting_error(key: str, value: object, rule: str) -> ConfigError:
    """Return the error for a setting below ``task_settings``, or for a place in the data."""
    return Origin("language task", key=f"task_settings.{key}").error(rule, value)


@contextmanager
def setting_errors(key: str, value: object, rule: str) -> Iterator[None]:
    """Turn the errors of libraries, each of which raises its own, into ``setting_error``."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise setting_error(key, value, f"{rule}: {first_line(error)}") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the error's type if there is no message."""
    line, _, _ = str(error).strip().partition("\n")
    return line.rstrip(".") or type(error).__name__
