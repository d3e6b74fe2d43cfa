"""Files and folders on a disk: written whole, and read although others may have written them.

A file or folder appears under its name when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import xxhash

from ..distributed.agreement import Agreement
from ..errors import CheckpointError, LaunchError, TrainerError, writing
from ..text import size

# Bytes after which the disk begins to write. Flushing only at the end takes 1.4 times as long.
AHEAD = 1 << 24
# Bytes. Far more than a run writes, and far less than a machine's memory.
LARGEST_JSON = 256 << 20


def write_file(
    path: Path, parts: Iterable[bytes | memoryview], name: str | None = None
) -> dict[str, Any]:
    """Write a new file, flush the file to the disk, and return its entry in a manifest by name."""
    digest = xxhash.xxh3_128()
    with open(path, "xb") as file:
        for part in parts:
            for begin in range(0, len(part), AHEAD):
                chunk = memoryview(part)[begin : begin + AHEAD]
                digest.update(chunk)
                file.write(chunk)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.flush()
        os.fsync(file.fileno())
        return {name or path.name: {"bytes": file.tell(), "xxh3": digest.hexdigest()}}


def hash_file(path: Path) -> str:
    """Compute the checksum of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def part_of(path: Path) -> Path:
    """Return the hidden sibling in which a path is written until ``publish`` renames it."""
    return path.with_name(f".{path.name}.part")


def publish(path: Path) -> None:
    """Flush ``part_of(path)`` to the disk, and rename this file or folder to ``path``."""
    part = part_of(path)
    old = path.with_name(f".{path.name}.old")

    for written in (*part.rglob("*"), part):
        if not written.is_symlink():
            _flush(written)

    if path.is_dir():
        delete(old)
        os.rename(path, old)
    os.rename(part, path)
    _flush(path.parent)

    delete(old)


def delete(path: Path) -> None:
    """Delete a file or a folder that may not exist. Of a link, only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until a file or a folder's list of names is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_free(folder: Path, needed: int) -> None:
    """Raise ``CheckpointError`` if the disk of a folder lacks the bytes that a checkpoint needs."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{folder}: a checkpoint needs {size(needed)}, but {size(free)} are free; make room, "
            "or lower keep_last"
        )


def check_shared(folder: Path, agreement: Agreement) -> None:
    """Check that every rank sees the same folder, where each writes a file. Collective."""
    name = agreement.of_main(f".probe-{uuid.uuid4().hex}")
    probe = folder / name

    def write_probe() -> None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()

    agreement.run_on_main(write_probe)
    # Listing the folder makes a network file system look again. The answer for a single file may
    # come from a cache.
    seen = agreement.gather(folder.is_dir() and name in os.listdir(folder))
    agreement.run_on_main(probe.unlink)

    if not all(seen):
        raise LaunchError(
            f"{folder}: rank {seen.index(False)} does not see what the main process writes there; "
            "give an output_dir on a file system that all nodes share, or keep_last: 0"
        )


class Unreadable(CheckpointError):
    """A file, perhaps a whole file, that this program or this machine cannot read."""


def path_inside(folder: Path, name: str) -> Path:
    """Return the path of the regular file called ``name`` (``extras/config.json``) in ``folder``.

    Raises:
        CheckpointError: the name leads out of the folder, over a link or to a pipe or the like, or
            holds control characters.
    """
    path = folder / name
    if (
        name.isprintable()
        and "\\" not in name
        and os.path.realpath(path) == f"{os.path.realpath(folder)}/{name}"
        and stat.S_ISREG(path.lstat().st_mode)
    ):
        return path
    raise CheckpointError(f"{name!r} is no plain file inside the folder")


def read_json(path: Path) -> Any:
    """Read a JSON file. Raise ``CheckpointError`` for another file, or more than 256 MiB."""
    if path.stat().st_size > LARGEST_JSON:
        raise CheckpointError(f"{path.name} cannot be read: more than {LARGEST_JSON} bytes of JSON")
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from None


@contextlib.contextmanager
def trusting_no_value(source: object) -> Iterator[None]:
    """Turn the error of a block that meets a forged value into a ``CheckpointError``."""
    try:
        yield
    except (TrainerError, OSError):
        raise
    except Exception as error:  # whatever the value leads to
        raise CheckpointError(
            f"{source}: holds a value that no run writes: {error!r:.200}"
        ) from error
