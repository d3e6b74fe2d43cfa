"""Mistakes in what was typed behind a command."""

from __future__ import annotations

from ..errors import COMMAND_LINE, ConfigError, Origin, Problem


def usage_error(key: str, value: object, rule: str) -> ConfigError:
    """Return the error for a wrong word of the command line.

    Args:
        key: of the option; empty where the word has none.
    """
    return ConfigError(Problem(origin=Origin(COMMAND_LINE, key=key), value=value, rule=rule))
