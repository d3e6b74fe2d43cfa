"""A lock on a folder: other processes, also of other machines, see it.

The kernel releases it when the process that holds it ends, however that happens.

The lock is of our own, because a restart must get it as soon as its predecessor was killed.
filelock 4.2.11 left it with a forked child (a data worker) that outlived its killed parent for
seconds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from pathlib import Path
from weakref import WeakValueDictionary

LOCK = ".lock"
_PREFIX = "samecurve: "


class Locked(Exception):
    """Another process has the lock; the text says which."""


class _LockFile:
    """The open lock file; it is closed, and so unlocked, when nothing refers to it any more."""

    def __init__(self, path: Path) -> None:
        # Before os.open, which may fail: __del__ looks at it.
        self._descriptor: int | None = None
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)

    @property
    def descriptor(self) -> int:
        """Return the number of the open file."""
        assert self._descriptor is not None
        return self._descriptor

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def __del__(self) -> None:
        self.close()

    def lock(self) -> None:
        """Lock the open file, without waiting.

        A lock of the process (``lockf``) would be gone as soon as the process closes any file of
        this name: a callback that copies the run's folder away is enough. A lock of the open file
        (``F_OFD_SETLK``, on Linux) is not; it conflicts with the ``lockf`` of earlier versions.

        Raises:
            OSError: another process has it locked (EACCES, EAGAIN), or the file system cannot lock.
        """
        if hasattr(fcntl, "F_OFD_SETLK"):
            whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, whole_file)
        else:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def is_at(self, path: Path) -> bool:
        """Return whether the open file is still the one of that name."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(path))
        except FileNotFoundError:
            return False

    def read(self) -> str:
        """Return who wrote the file last."""
        return os.pread(self.descriptor, 200, 0).decode(errors="replace")

    def write_holder(self) -> None:
        """Write which process holds the lock."""
        holder = f"{_PREFIX}process {os.getpid()} on {socket.gethostname()}\n"
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, holder.encode(), 0)


# What this process has locked, by the folder.
_held: WeakValueDictionary[str, _LockFile] = WeakValueDictionary()


def _close_in_child() -> None:
    """Close a forked child's copies of the lock files: a child may outlive a killed parent."""
    for file in list(_held.values()):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)


class FolderLock:
    """The lock of one folder, held from its construction until ``release`` or the process's end.

    Several of one process share it: a training that continues where another one of the same
    process ended.

    Args:
        folder: exists, and can be written.

    Attributes:
        new: whether the folder had no lock file before.
        was_ours: whether a run of this program held it before.
        notice: why the folder is not locked, on a file system that cannot; else empty.

    Raises:
        Locked: another process has it.
        OSError: the file cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self.new = False
        self.notice = ""
        real_folder = os.path.realpath(folder)

        self._file = _held.get(real_folder)
        self.was_ours = self._file is not None
        # Again where the file was deleted between opening and locking it: a process that was
        # refused deletes the file that it made.
        while self._file is None:
            self._file = self._try_to_lock()
        _held[real_folder] = self._file

    def _try_to_lock(self) -> _LockFile | None:
        """Lock the file and return it; None where it is no longer in the folder."""
        is_new = not os.path.lexists(self.path)
        file = _LockFile(self.path)
        written = file.read()
        try:
            file.lock()
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                holder = written.removeprefix(_PREFIX).strip()
                raise Locked(holder or "another process") from None
            folder = self.path.parent
            self.notice = f"{folder} cannot be locked against a second run: {error.strerror}"

        if not file.is_at(self.path):
            return None
        self.new = is_new
        self.was_ours = written.startswith(_PREFIX)
        file.write_holder()
        return file

    def release(self, *, undo: bool = False) -> None:
        """Let another process have the folder; with ``undo`` delete a lock file that is new."""
        if undo and self.new:
            self.path.unlink(missing_ok=True)
        # Closed when no other training of this process holds it either.
        self._file = None
