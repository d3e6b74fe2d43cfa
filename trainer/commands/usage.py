"""Mistakes in what was typed behind a command."""

from __future__ import annotations

from ..config.arguments import COMMAND_LINE
from ..errors import ConfigError, Problem


def usage_error(key: str, value: object, rule: str) -> ConfigError:
    """Return the error for a wrong word of the command line.

    Args:
        key: of the option; empty where the word has none.
    """
    return ConfigError(Problem(where=COMMAND_LINE, key=key, value=value, rule=rule))
