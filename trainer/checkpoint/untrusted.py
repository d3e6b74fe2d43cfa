"""Files that a stranger may have forged: names that stay inside their folder, JSON without surprises."""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any, NoReturn

from ..errors import CheckpointError

LARGEST_JSON = 256 << 20  # bytes; far above what a run writes, far below what fills a machine's memory
_DEEPEST = 200  # levels; what walks through the values is recursive


def parts_of(name: object) -> list[str]:
    """Take apart a name that stays inside its folder, with ``/`` between its parts.

    Raises:
        CheckpointError: it does not, or has letters that are not for names.
    """
    parts = name.split("/") if isinstance(name, str) else []
    odd = not isinstance(name, str) or any(letter in "\\\x7f" or letter < " " for letter in name)
    if odd or any(part in ("", ".", "..") for part in parts):
        raise CheckpointError(f"{name!r} is no name of a file inside the folder")
    return parts


def path_inside(folder: Path, name: object) -> Path:
    """Return the path of the regular file that ``name`` means inside ``folder``.

    Raises:
        CheckpointError: the name leads out of the folder, or to a link, a pipe or whatever is no plain file.
        OSError: there is no such file, or it cannot be looked at.
    """
    parts, path = parts_of(name), folder
    for number, part in enumerate(parts, 1):
        path = path / part
        try:
            mode = path.lstat().st_mode
        except ValueError:  # no file system can hold it
            raise CheckpointError(f"{name!r} is no name of a file inside the folder") from None
        if not (stat.S_ISREG(mode) if number == len(parts) else stat.S_ISDIR(mode)):
            raise CheckpointError(f"{name} is no plain file: {'/'.join(parts[:number])} is a link or something else")
    return path


def read_small(path: Path) -> bytes:
    """Read a file of JSON, no further than ``parse_json`` would take it.

    Raises:
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return file.read(LARGEST_JSON + 1)


def parse_json(text: bytes) -> Any:
    """Parse JSON in UTF-8.

    Raises:
        ValueError: it is none, holds a number that is not finite, is nested too deeply or too large.
    """
    if len(text) > LARGEST_JSON:
        raise ValueError(f"more than {LARGEST_JSON >> 20} MiB of JSON")
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return value
    raise ValueError("nested too deeply")


def is_count(value: object) -> bool:
    """Whether a value of JSON is a whole number that can count something."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def is_number(value: object) -> bool:
    """Whether a value of JSON is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 1000


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse(text)
    return value
