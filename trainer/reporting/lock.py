"""A lock on a folder: other processes, also of other machines, see it.

The kernel releases the lock when the process that holds it ends, however that happens. The lock is
of our own, because a restart must get it as soon as its predecessor was killed. filelock 4.2.11
leaves it with a forked child (a data worker) that outlives its killed parent for seconds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path
from weakref import WeakValueDictionary

LOCK = ".lock"
_PREFIX = "samecurve: "


class Locked(Exception):
    """Another process has the lock. The text says which."""


class _LockFile:
    """The open lock file. It is closed, and so unlocked, when nothing refers to it any more."""

    def __init__(self, path: Path) -> None:
        self.descriptor = -1  # before os.open, which may fail: __del__ looks at it
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor = -1

    def __del__(self) -> None:
        self.close()


# The files that this process has locked, by the folder.
_held: WeakValueDictionary[str, _LockFile] = WeakValueDictionary()


def _close_in_child() -> None:
    """Close a forked child's copies of the lock files: a child may outlive a killed parent."""
    for file in list(_held.values()):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)


class FolderLock:
    """The lock of one folder, held from its construction until ``release`` or the process's end.

    Several of one process share it: a training that continues where another training of the same
    process ended.

    Args:
        folder: exists, and can be written.

    Attributes:
        new: whether the folder had no lock file before.
        was_ours: whether a run of this program held it before.
        notice: why the folder is not locked, on a file system that cannot. Else empty.

    Raises:
        Locked: another process has it.
        OSError: the file cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOCK
        self.new = not os.path.lexists(self.path)
        self.notice = ""
        real_folder = os.path.realpath(folder)
        held = _held.get(real_folder)
        self.was_ours = held is not None
        self._file: _LockFile | None = held or self._locked_file()
        _held[real_folder] = self._file

    def _locked_file(self) -> _LockFile:
        file = _LockFile(self.path)
        written = os.pread(file.descriptor, 200, 0).decode(errors="replace")
        try:
            # Of the open file, not of the process: a lock of the process (lockf) is gone as soon as
            # the process closes any file of this name.
            fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise Locked(written.removeprefix(_PREFIX).strip() or "another process") from None
            self.notice = f"{self.path.parent} cannot be locked: {error.strerror}"
        # A refused run may have deleted the file meanwhile.
        if not self.path.exists() or not os.path.samestat(
            os.fstat(file.descriptor), self.path.stat()
        ):
            return self._locked_file()

        self.was_ours = written.startswith(_PREFIX)
        holder = f"{_PREFIX}process {os.getpid()} on {socket.gethostname()}\n"
        os.ftruncate(file.descriptor, 0)
        os.pwrite(file.descriptor, holder.encode(), 0)
        return file

    def release(self, *, undo: bool = False) -> None:
        """Let another process have the folder. With ``undo`` delete a lock file that is new."""
        if undo and self.new:
            self.path.unlink(missing_ok=True)
        # Closed when no other training of this process holds it either.
        self._file = None
