"""Mistakes in what was typed behind a command."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config.paths import not_local
from ..errors import COMMAND_LINE, ConfigError, Origin, Problem


def usage_error(key: str, value: object, rule: str) -> ConfigError:
    """Return the error for a wrong word of the command line.

    Args:
        key: of the option; empty where the word has none.
    """
    return ConfigError(Problem(origin=Origin(COMMAND_LINE, key=key), value=value, rule=rule))


def local_text(text: str) -> str:
    """Return an argument that must be a path; as the ``type`` of an option that is used as text.

    Raises:
        ArgumentTypeError: it is an address such as ``s3://bucket/run``.
    """
    if not_local(text):
        raise argparse.ArgumentTypeError(f"{text!r}: {not_local(text)}")
    return text


def local_path(text: str) -> Path:
    """Return an argument as a path; raises as ``local_text``."""
    return Path(local_text(text))
