"""Files that others may have written: paths that stay in a folder, JSON of limited size."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, TrainerError

# Bytes. Far more than a run writes, and far less than a machine's memory.
LARGEST_JSON = 256 << 20


class Unreadable(CheckpointError):
    """A file, perhaps a whole file, that this program or this machine cannot read."""


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of the regular file called ``name`` (``extras/config.json``) in ``folder``.

    Raises:
        CheckpointError: the name leads out of the folder, over a link or to a pipe or the like, or
            holds control characters.
        OSError: the file does not exist, or cannot be accessed.
    """
    path = folder / name
    plain = name.isprintable() and "\\" not in name
    if plain and os.path.realpath(path) == f"{os.path.realpath(folder)}/{name}":
        if stat.S_ISREG(path.lstat().st_mode):
            return path
    raise CheckpointError(f"{name!r} is no plain file inside the folder")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        CheckpointError: the file is no JSON, or larger than 256 MiB.
    """
    if path.stat().st_size > LARGEST_JSON:
        raise CheckpointError(f"{path.name} cannot be read: more than {LARGEST_JSON} bytes of JSON")
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from None


@contextlib.contextmanager
def trusting_no_value(source: object) -> Iterator[None]:
    """Turn the error of a block that meets a forged value into a ``CheckpointError``.

    Args:
        source: of the values, for the message.
    """
    try:
        yield
    except TrainerError:
        raise
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as e:
        raise CheckpointError(f"{source}: holds a value that no run writes: {e!r:.200}") from e
