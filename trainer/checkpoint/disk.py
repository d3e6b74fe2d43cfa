"""Room on the disk, found out before it is needed."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError, LaunchError
from ..text import size

if TYPE_CHECKING:
    from ..distributed.agreement import Control


def check_free(folder: Path, needed: int, what: str) -> None:
    """Raise ``CheckpointError`` where the disk has no room for so many bytes."""
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise CheckpointError(
            f"{folder}: {what} needs {size(needed)}, but {size(free)} are free; make room, or lower keep_last"
        )


def check_shared(folder: Path, control: Control) -> None:
    """Every rank must see what the main process writes: a checkpoint is one folder, made by all of them.

    Raises:
        LaunchError: a node has a disk of its own under this name.
        CheckpointError: the folder cannot be written.
    """
    [name, *_] = control.gather(f".probe-{uuid.uuid4().hex}")

    def write() -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        except OSError as error:
            raise CheckpointError(f"{folder}: no checkpoint can be written there: {error.strerror}") from None

    control.on_main(write)
    # Listing the folder makes a network file system look anew, where asking for the file may answer from its cache.
    seen = control.gather(folder.is_dir() and any(entry.name == name for entry in folder.iterdir()))
    control.on_main(lambda: (folder / name).unlink())
    blind = [str(rank) for rank, sees in enumerate(seen) if not sees]
    if blind:
        raise LaunchError(
            f"{folder}: rank {', '.join(blind)} does not see what the main process writes there: each node seems "
            "to have a disk of its own; give an output_dir on a file system that all nodes share, or keep_last: 0 to "
            "train without checkpoints"
        )
