"""Files that others may have written: paths that stay in a folder, JSON of limited size."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

# Bytes. Far more than a run writes, and far less than what fills a machine's memory.
LARGEST_JSON = 256 << 20


class Unreadable(CheckpointError):
    """A file that cannot be read by this program or on this machine. It may still be whole."""


def split_name(name: object) -> list[str]:
    """Split a file name like ``extras/config.json`` at each ``/``.

    Raises:
        CheckpointError: the name could lead out of its folder, or holds control characters.
    """
    if not isinstance(name, str) or any(letter < " " or letter in "\\\x7f" for letter in name):
        raise CheckpointError(f"{name!r} is no name of a file inside the folder")
    parts = name.split("/")
    if "" in parts or "." in parts or ".." in parts:
        raise CheckpointError(f"{name!r} is no name of a file inside the folder")
    return parts


def path_inside(folder: Path, name: object) -> Path:
    """Return the path of the regular file called ``name`` inside ``folder``.

    Raises:
        CheckpointError: the name leads out of the folder, or to a link, a pipe or the like.
        OSError: there is no such file, or it cannot be accessed.
    """
    parts = split_name(name)
    path = folder
    for number, part in enumerate(parts, 1):
        path = path / part
        mode = path.lstat().st_mode
        is_last = number == len(parts)
        is_plain = stat.S_ISREG(mode) if is_last else stat.S_ISDIR(mode)
        if not is_plain:
            place = "/".join(parts[:number])
            raise CheckpointError(f"{name} is no plain file: {place} is a link or something else")
    return path


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        CheckpointError: the file is no JSON, or larger than 256 MiB.
    """
    with open(path, "rb") as file:
        text = file.read(LARGEST_JSON + 1)
    if len(text) > LARGEST_JSON:
        raise CheckpointError(f"{path.name} cannot be read: {too_large()}")

    try:
        return json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from None


def too_large() -> str:
    """Return the message for a JSON text above the limit."""
    return f"more than {LARGEST_JSON >> 20} MiB of JSON"
