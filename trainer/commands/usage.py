"""The parser of a command, and types of arguments: local paths and positive numbers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..config.paths import not_local


def command_parser(name: str, description: str | None, **more: Any) -> argparse.ArgumentParser:
    """Return the parser of ``trainer name``. The help keeps the lines of the description.

    Args:
        more: ``epilog``, ``usage``.
    """
    return argparse.ArgumentParser(
        prog=f"trainer {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # --micro is a setting of the training config with a typo, not short for an option.
        allow_abbrev=False,
        **more,
    )


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
