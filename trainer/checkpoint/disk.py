"""Files written so that none is seen under its name before it is whole, whatever is killed; and the
room for them.
"""

from __future__ import annotations

import contextlib
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

CHUNK = (
    1 << 20
)  # bytes at a time: still in the processor's cache when they are hashed, which halves its time
AHEAD = (
    1 << 24
    # bytes after which the disk begins to write; a flush at the end, of all of them, takes 1.4 x as
    # long
)


class FileFact(NamedTuple):
    """What a manifest says about a file."""

    name: str
    bytes: int
    xxh3: str


def write_file(
    path: Path, parts: Iterable[bytes | memoryview], name: str | None = None
) -> FileFact:
    """Write a new file, hash it on the way, and return when it is on the disk; ``name`` if it is
    not the path's.
    """
    digest, count = xxhash.xxh3_128(), 0
    with open(path, "xb") as file:
        for part in parts:
            for begin in range(0, len(part), AHEAD):
                digest.update(chunk := memoryview(part)[begin : begin + AHEAD])
                file.write(chunk)
                if hasattr(
                    os, "posix_fadvise"
                ):  # Linux writes back what will not be needed; macOS has no such call
                    os.posix_fadvise(file.fileno(), count, len(chunk), os.POSIX_FADV_DONTNEED)
                count += len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return FileFact(name or path.name, count, digest.hexdigest())


def hash_file(path: Path) -> str:
    """Compute the checksum of a file's bytes."""
    digest, buffer = xxhash.xxh3_128(), bytearray(CHUNK)
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


def part_of(path: Path) -> Path:
    """Return the hidden sibling in which a file or folder is written, before ``publish`` gives it
    its name.
    """
    return path.with_name(f".{path.name}.part")


def publish(path: Path) -> None:
    """Flush what was written to ``part_of(path)`` and rename it to ``path``; a folder of that name
    goes after it.
    """
    part, old = part_of(path), path.with_name(f".{path.name}.old")
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
    """Delete a file or a folder, if it is there; of a link, only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_free(folder: Path, needed: int, what: str) -> None:
    """Raise ``CheckpointError`` where the disk has no room for so many bytes."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise CheckpointError(
            f"{folder}: {what} needs {size(needed)}, but {size(free)} are free; make room, or lower keep_last"
        )


def check_shared(folder: Path, agreement: Agreement) -> None:
    """Hold a folder to be the same one on every rank: a checkpoint is made by all of them.
    Collective.

    Raises:
        LaunchError: a node has a disk of its own under this name.
        CheckpointError: the folder cannot be written.
    """
    [name, *_] = agreement.gather(f".probe-{uuid.uuid4().hex}")
    changed: list[int] = []  # when the folder was, in nanoseconds

    def write() -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            changed.append(folder.stat().st_mtime_ns)
            (folder / name).touch()
        except OSError as error:
            raise CheckpointError(
                f"{folder}: no checkpoint can be written there: {error.strerror}"
            ) from None

    def remove() -> None:
        (folder / name).unlink()
        # A finished run that is started again stays as it is, its folder's date too. Not everybody
        # may set that.
        with contextlib.suppress(OSError):
            os.utime(folder, ns=(folder.stat().st_atime_ns, changed[0]))

    agreement.run_on_main(write)
    # Listing the folder makes a network file system look anew, where asking for the file may answer
    # from its cache.
    seen = agreement.gather(
        folder.is_dir() and any(entry.name == name for entry in folder.iterdir())
    )
    agreement.run_on_main(remove)
    blind = [str(rank) for rank, sees in enumerate(seen) if not sees]
    if blind:
        raise LaunchError(
            f"{folder}: rank {', '.join(blind)} does not see what the main process writes there: each node seems "
            "to have a disk of its own; give an output_dir on a file system that all nodes share, or keep_last: 0 to "
            "train without checkpoints"
        )
