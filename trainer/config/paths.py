"""Paths that users type: of this machine's file system, never an address like ``s3://a/b``."""

from __future__ import annotations

import re
from pathlib import PurePath

# Two letters at least, so that C:/ is none; one slash is what pathlib leaves of two.
_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/{1,3}(?P<rest>.*)", re.DOTALL)


def not_local(path: str | PurePath) -> str:
    """Return the rule that an address breaks where a path is wanted; empty for a path."""
    address = _ADDRESS.fullmatch(str(path))
    if address is None:
        return ""
    if address["scheme"].lower() == "file":
        return f"is an address, and not a path: write /{address['rest'].removeprefix('localhost/')}"
    return (
        "is an address: samecurve reads and writes this machine's file system only; "
        "mount it as a folder, or copy it from there and back"
    )
