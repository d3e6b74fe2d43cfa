"""Data preparation (download, tokenise, pack): once per node, cached by content.

The first process prepares the data behind a lock on a file, which also serves two jobs on the same
machine. A barrier would not do: long work runs into the time-out of collectives.
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
    """Return the folder that ``make`` fills from ``content``, called by the first process alone.

    The complete folder appears by a rename, under a hash of ``content``. An unfinished folder of a
    killed process is made anew. If ``make`` fails, the next process that waits tries again.

    Args:
        cache: parent of the folders, on a file system with locks (local disks, NFS with its lock
            manager). If each node has its own cache, each prepares the data.
        content: all JSON data that the result depends on: a format number of yours, settings, the
            input.
        make: writes files into the empty folder, its argument.

    Raises:
        DataError: ``cache`` is an address such as ``s3://bucket/cache``.
    """
    from filelock import FileLock  # comes with torch

    rule = not_local(cache)
    if rule:
        raise DataError(f"cache {str(cache)!r}: {rule}")
    root = Path(cache).expanduser()
    root.mkdir(parents=True, exist_ok=True)

    text = json.dumps(content, sort_keys=True)
    folder = root / hashlib.sha256(text.encode()).hexdigest()[:20]
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
