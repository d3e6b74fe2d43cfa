"""A lock on a folder, which another process on any machine sees and which the kernel releases with
its process.
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


class _Handle:
    """An open file that is closed, and with that unlocked, when nobody has it any more."""

    number: int | None = None

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)

    def close(self) -> None:
        if self.number is not None:
            os.close(self.number)
        self.number = None

    def __del__(self) -> None:
        self.close()

    def lock(self) -> None:
        """Lock the open file, without waiting; ``OSError`` where another one is locked, or none can
        be.

        A lock of the process (``lockf``) would be gone as soon as the process closes any file of
        this name: a callback that copies the run's folder away is enough.
        """
        assert self.number is not None
        if hasattr(
            fcntl, "F_OFD_SETLK"
        ):  # Linux; it meets the locks of earlier versions, which were lockf's
            whole_file = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(self.number, fcntl.F_OFD_SETLK, whole_file)
        else:
            fcntl.flock(self.number, fcntl.LOCK_EX | fcntl.LOCK_NB)


_held: WeakValueDictionary[str, _Handle] = (
    WeakValueDictionary()
)  # what this process has locked, by the folder


def _leave_to_parent() -> None:
    """Close what a forked child (a data worker) has of the locks: it may outlive a killed parent
    for seconds.
    """
    for handle in list(_held.values()):
        handle.close()


os.register_at_fork(after_in_child=_leave_to_parent)


class FolderLock:
    """The lock of one folder, taken at once and held until ``release`` or the end of the process,
    however it ends.

    Several of one process share it: a training that goes on where another one of the same process
    ended.

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
        self.path, self.new, self.notice = folder / LOCK, False, ""
        real = os.path.realpath(folder)
        self._handle = _held.get(real)
        self.was_ours = self._handle is not None
        while self._handle is None:
            new, handle = not os.path.lexists(self.path), _Handle(self.path)
            number = handle.number
            assert number is not None
            said = os.pread(number, 200, 0).decode(errors="replace")
            try:
                handle.lock()
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise Locked(said.removeprefix(_PREFIX).strip() or "another process") from None
                self.notice = f"{folder} cannot be locked against a second run: {error.strerror}"
            if self._is_still_there(
                handle
            ):  # a process that was refused deletes the file that it made
                self._handle, self.new, self.was_ours = handle, new, said.startswith(_PREFIX)
                os.ftruncate(number, 0)
                os.pwrite(
                    number,
                    f"{_PREFIX}process {os.getpid()} on {socket.gethostname()}\n".encode(),
                    0,
                )
                _held[real] = handle

    def _is_still_there(self, handle: _Handle) -> bool:
        try:
            assert handle.number is not None
            return os.path.samestat(os.fstat(handle.number), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self, *, undo: bool = False) -> None:
        """Let another process have the folder; with ``undo`` a lock file that is new goes as well."""
        if undo and self.new:
            self.path.unlink(missing_ok=True)
        self._handle = None  # closed when no other training of this process holds it either
