"""Data preparation (download, tokenise, pack): once per node, cached by content, behind a file
lock.

A barrier around long work runs into the time-out of collectives; a lock on a file does not, and
serves processes that know nothing of each other, such as two jobs on one machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ..config.paths import not_local
from ..errors import DataError


def prepare_once(cache: str | Path, content: object, make: Callable[[Path], object]) -> Path:
    """Return the folder that ``make`` fills from ``content``: made by the first process that asks,
    found by others.

    The folder's name is a hash of ``content``, so other content is another folder. It appears by
    one rename, when all of it is there: what a killed process left is thrown away and made anew. If
    ``make`` fails, its error is raised where it ran, and the next process that waits tries for
    itself.

    Args:
        cache: parent of the folders, on a file system with locks (local disks, NFS with its lock
            manager). Each node with a cache of its own makes its own; a shared one is filled once
            for all.
        content: JSON data that the result depends on, all of it: a format number of yours,
            settings, the input.
        make: writes files into the empty folder that it is given.

    Raises:
        DataError: ``cache`` is an address such as ``s3://bucket/cache``.
    """
    from filelock import FileLock  # comes with torch

    if not_local(cache):
        raise DataError(f"cache {str(cache)!r}: {not_local(cache)}")
    root = Path(cache).expanduser()
    root.mkdir(parents=True, exist_ok=True)
    folder = root / hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]
    if folder.exists():
        return folder
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)  # of a process that was killed
            unfinished.mkdir()
            make(unfinished)
            os.replace(unfinished, folder)
    return folder
