"""Types of argparse for the arguments of commands: local paths and positive numbers."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config.paths import not_local


def local_text(text: str) -> str:
    """Return a local path as text.

    Raises:
        ArgumentTypeError: the text is an address such as ``s3://bucket/run``.
    """
    rule = not_local(text)
    if rule:
        raise argparse.ArgumentTypeError(f"{text!r}: {rule}")
    return text


def local_path(text: str) -> Path:
    """Return a local path. Raises as ``local_text`` does."""
    return Path(local_text(text))


def positive_number(text: str) -> int:
    """Return a number of at least 1.

    Raises:
        ArgumentTypeError: another text.
    """
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of at least 1")
    return int(text)
