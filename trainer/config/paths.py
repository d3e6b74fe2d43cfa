"""Paths of this machine's file system, and never an address such as ``s3://a/b``."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated

from pydantic import AfterValidator


def not_local(path: str | PurePath) -> str:
    """Return the rule that an address breaks as a path. Empty for a path."""
    # Two letters at least, so that C:/ is a path. pathlib drops the second slash.
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(path)):
        return ""
    return (
        "is an address: samecurve reads and writes this machine's file system only; "
        "mount it as a folder, or copy it from there and back"
    )


def local_path(text: str) -> str:
    """Return a path. Raise ``ValueError`` for text that is no path."""
    rule = not_local(text)
    if rule:
        raise ValueError(rule)
    return text


LocalPath = Annotated[str, AfterValidator(local_path)]
"""The annotation of text that names a path of this machine's file system."""
