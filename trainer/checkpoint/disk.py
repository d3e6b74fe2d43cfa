"""Writing files and folders so that none is seen under its name before it is complete."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import xxhash

from ..distributed.agreement import Agreement
from ..errors import CheckpointError, LaunchError
from ..text import size

CHUNK = 1 << 20  # bytes that are hashed at a time: they fit the processor's cache
# Bytes after which the disk begins to write. If everything is flushed at the end, a file takes 1.4
# times as long.
AHEAD = 1 << 24


class FileFact(NamedTuple):
    """What a manifest says about a file."""

    name: str
    bytes: int
    xxh3: str


def write_file(
    path: Path, parts: Iterable[bytes | memoryview], name: str | None = None
) -> FileFact:
    """Write a new file and hash it on the way. It is on the disk when this returns.

    Args:
        parts: the content, in order.
        name: the file's name in the manifest. By default the last part of the path.
    """
    digest = xxhash.xxh3_128()
    with open(path, "xb") as file:
        for part in parts:
            for begin in range(0, len(part), AHEAD):
                chunk = memoryview(part)[begin : begin + AHEAD]
                digest.update(chunk)
                file.write(chunk)
                if hasattr(os, "posix_fadvise"):  # macOS has no such call
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        written = file.tell()
        file.flush()
        os.fsync(file.fileno())
    return FileFact(name or path.name, written, digest.hexdigest())


def hash_file(path: Path) -> str:
    """Compute the checksum of a file's bytes."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while content := file.read(CHUNK):
            digest.update(content)
    return digest.hexdigest()


def part_of(path: Path) -> Path:
    """Return the hidden sibling in which a path is written until ``publish`` renames it."""
    return path.with_name(f".{path.name}.part")


def publish(path: Path) -> None:
    """Flush what was written to ``part_of(path)`` and rename it to ``path``.

    A folder that has this name already is deleted after the rename.
    """
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
    """Delete a file or a folder, if there is one. Of a link, only the link."""
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


def check_free(folder: Path, needed: int, what: str) -> None:
    """Check that the disk of a folder has room for so many bytes.

    Raises:
        CheckpointError: it has not. The message says that ``what`` needs them.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{folder}: {what} needs {size(needed)}, but {size(free)} are free; make room, "
            "or lower keep_last"
        )


def check_shared(folder: Path, agreement: Agreement) -> None:
    """Check that a folder is the same one on every rank, since every rank writes to it.

    Collective: call on every rank.

    Raises:
        LaunchError: a node has a disk of its own under this name.
        CheckpointError: the folder cannot be written.
    """
    names = agreement.gather(f".probe-{uuid.uuid4().hex}")
    probe = folder / names[0]

    def write_probe() -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
        except OSError as error:
            raise CheckpointError(
                f"{folder}: no checkpoint can be written there: {error.strerror}"
            ) from None

    agreement.run_on_main(write_probe)
    # Listing the folder makes a network file system look again. It may answer a question for one
    # file from its cache.
    seen = agreement.gather(folder.is_dir() and probe.name in os.listdir(folder))
    agreement.run_on_main(probe.unlink)

    blind = [str(rank) for rank, sees in enumerate(seen) if not sees]
    if blind:
        raise LaunchError(
            f"{folder}: rank {', '.join(blind)} does not see what the main process writes there; "
            "give an output_dir on a file system that all nodes share, or keep_last: 0"
        )
