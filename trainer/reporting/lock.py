"""A lock on a folder, which other processes see, also on other machines.

The kernel releases the lock when the process ends, even if killed. A library does not serve:
filelock 4.2.11 leaves the lock with a forked child (a data worker) that outlives a killed parent
for seconds.
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path
from weakref import WeakValueDictionary, finalize

LOCK = ".lock"


class Locked(Exception):
    """Another process has the lock. The text names the process."""


class FolderLock:
    """The lock of a folder, held until nothing refers to the lock any more or the process ends.

    ``notices`` say why the folder is not locked, on a file system without locks.

    Raises:
        Locked: another process has the lock.
    """

    def __init__(self, folder: Path) -> None:
        file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        # Close the file of the lock, and so unlock the folder.
        self.close = finalize(self, os.close, file)
        self.notices: list[str] = []
        try:
            # Of the open file, not of the process: a lock of the process (lockf) is gone as soon as
            # the process closes any file of this name.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = os.pread(file, 200, 0).decode(errors="replace")
            raise Locked(holder.strip() or "another process") from None
        except OSError as error:
            self.notices.append(f"{folder} cannot be locked: {error.strerror}")

        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


# The locks of this process, by the folder.
_held: WeakValueDictionary[Path, FolderLock] = WeakValueDictionary()


def lock_folder(folder: Path) -> FolderLock:
    """Return the lock of a folder. Several trainings of one process share it."""
    path = folder.resolve()
    lock = _held.get(path)
    if not lock:
        lock = _held[path] = FolderLock(folder)
    return lock


def _close_in_child() -> None:
    """Close a forked child's copies of the lock files: a child may outlive a killed parent."""
    for lock in _held.values():
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)
