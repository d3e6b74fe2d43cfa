"""What the commands share in reading their command lines: errors, and paths that must be local."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config.paths import not_local
from ..errors import COMMAND_LINE, ConfigError, Origin, Problem


def usage_error(key: str, value: object, rule: str) -> ConfigError:
    """Return the error for a wrong word of the command line.

    Args:
        key: the option. Empty if the word is a positional argument.
        value: the word.
        rule: why it is wrong, and what to give instead.
    """
    origin = Origin(COMMAND_LINE, key=key)
    return ConfigError(Problem(origin=origin, value=value, rule=rule))


def local_text(text: str) -> str:
    """Return an argument unchanged, after a check that it is a local path.

    It is the argparse ``type`` of an argument that is used as text.

    Raises:
        ArgumentTypeError: it is an address such as ``s3://bucket/run``.
    """
    rule = not_local(text)
    if rule:
        raise argparse.ArgumentTypeError(f"{text!r}: {rule}")

    return text


def local_path(text: str) -> Path:
    """Return an argument as a path. Raises as ``local_text`` does."""
    return Path(local_text(text))
