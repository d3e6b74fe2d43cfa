"""Files that a stranger may have forged: names that stay in their folder, JSON without surprises,
values that fit.
"""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

LARGEST_JSON = (
    256 << 20
)  # bytes; far above what a run writes, far below what fills a machine's memory
_DEEPEST = 200  # levels; what walks through the values is recursive
Fits = Callable[[Any], bool]


class Unreadable(CheckpointError):
    """A file that may be whole, but cannot be read here and now."""


def parts_of(name: object) -> list[str]:
    """Take apart a name with ``/`` between its parts; ``CheckpointError`` if it could leave its
    folder.
    """
    parts = name.split("/") if isinstance(name, str) else [""]
    if {"", ".", ".."} & {*parts} or any(
        letter in "\\\x7f" or letter < " " for letter in "".join(parts)
    ):
        raise CheckpointError(f"{name!r} is no name of a file inside the folder")
    return parts


def path_inside(folder: Path, name: object) -> Path:
    """Return the path of the regular file that ``name`` means inside ``folder``.

    Raises:
        CheckpointError: the name leads out of the folder, or to a link, a pipe or whatever is no
            plain file.
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
            raise CheckpointError(
                f"{name} is no plain file: {'/'.join(parts[:number])} is a link or something else"
            )
    return path


def read_json(path: Path) -> Any:
    """Read a file of JSON; ``CheckpointError`` where ``parse_json`` does not take it."""
    with open(path, "rb") as file:
        text = file.read(LARGEST_JSON + 1)
    try:
        return parse_json(text)
    except ValueError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from None


def parse_json(text: bytes) -> Any:
    """Parse JSON; ``ValueError`` if a number in it is not finite, or it is nested too deeply or too
    large.
    """
    if len(text) > LARGEST_JSON:
        raise ValueError(f"more than {LARGEST_JSON >> 20} MiB of JSON")
    try:
        value = json.loads(text.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [value]
    for _ in range(_DEEPEST):
        if any(isinstance(item, float) and not math.isfinite(item) for item in level):
            raise ValueError("a number is not finite")
        inner = [
            item.values() if isinstance(item, dict) else item
            for item in level
            if isinstance(item, dict | list)
        ]
        level = [item for items in inner for item in items]
        if not level:
            return value
    raise ValueError("nested too deeply")


def check_form(value: object, table: Mapping[str, Fits], source: str) -> None:
    """Hold a mapping to a table of what must be true of each key; ``CheckpointError`` names the
    first that is not.
    """
    for key, fits in table.items():
        if not (isinstance(value, dict) and key in value and fits(value[key])):
            raise CheckpointError(f"{source}: {key!r} is not what the format has there")


def is_count(value: object) -> bool:
    """Tell whether a value is a whole number that can count something."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def is_number(value: object) -> bool:
    """Tell whether a value is a number that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1 << 1000


def is_text(value: object) -> bool:
    """Tell whether a value is a text."""
    return isinstance(value, str)


def list_of(fits: Fits) -> Fits:
    """Return a check of lists whose items all fit."""
    return lambda value: isinstance(value, list) and all(map(fits, value))


def dict_of(fits: Fits = lambda value: True, **keys: Fits) -> Fits:
    """Return a check of mappings whose values all fit, and that have these keys."""
    return lambda value: (
        isinstance(value, dict)
        and all(map(fits, value.values()))
        and all(key in value and key_fits(value[key]) for key, key_fits in keys.items())
    )
