"""A lock on a folder, which another process on any machine sees and which the kernel releases with its process."""

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
    """Another process has the lock; the text says which."""


class _Handle:
    """An open file that is closed, and with that unlocked, when nobody has it any more."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


_held: WeakValueDictionary[str, _Handle] = WeakValueDictionary()  # what this process has locked, by the folder


class FolderLock:
    """The lock of one folder, taken at once and held until ``release`` or the end of the process, however it ends.

    Several of one process share it: a training that goes on where another one of the same process ended.

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
            said = os.pread(handle.number, 200, 0).decode(errors="replace")
            try:
                # A lock of the process and not of the open file (flock): that one lives on in forked data workers for
                # seconds after the process was killed, and would refuse the restart.
                fcntl.lockf(handle.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    raise Locked(said.removeprefix(_PREFIX).strip() or "another process") from None
                self.notice = f"{folder} cannot be locked against a second run: {error.strerror}"
            if self._is_still_there(handle):  # a process that was refused deletes the file that it made
                self._handle, self.new, self.was_ours = handle, new, said.startswith(_PREFIX)
                os.ftruncate(handle.number, 0)
                os.pwrite(handle.number, f"{_PREFIX}process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                _held[real] = handle

    def _is_still_there(self, handle: _Handle) -> bool:
        try:
            return os.path.samestat(os.fstat(handle.number), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self, *, undo: bool = False) -> None:
        """Let another process have the folder; with ``undo`` a lock file that is new goes as well."""
        if undo and self.new:
            self.path.unlink(missing_ok=True)
        self._handle = None  # closed when no other training of this process holds it either
