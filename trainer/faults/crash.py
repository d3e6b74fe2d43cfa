"""The Python stack of a process that C++ ends, left in a file for another rank to read.

Without the file it would be printed above all else; so it is in the message, where a user reads.
"""

from __future__ import annotations

import faulthandler
import os
import tempfile
import threading
from pathlib import Path

from .board import Row


class CrashFile:
    """The file of this process, into which Python writes its stack where C++ ends it.

    A script that has enabled ``faulthandler`` itself keeps it.

    Attributes:
        path: of the file; "" for none.
    """

    def __init__(self) -> None:
        self.path = ""
        if faulthandler.is_enabled():
            return
        descriptor, self.path = tempfile.mkstemp(prefix="samecurve-crash-")
        self._file = os.fdopen(descriptor, "w")
        faulthandler.enable(self._file)

    def close(self) -> None:
        """Delete it: this process leaves what is watched."""
        if self.path:
            faulthandler.disable()
            self._file.close()
            self.delete()

    def delete(self) -> None:
        """Delete it from the folder: this process ends in a moment."""
        if self.path:
            Path(self.path).unlink(missing_ok=True)


class Crashes:
    """The stacks of ranks that crashed, of which each file is read once.

    Two threads may write a message, of which one is printed: both have all stacks.
    """

    def __init__(self) -> None:
        self._stacks: dict[int, str] = {}
        self._reading = threading.Lock()

    def read(self, rank: int, row: Row) -> None:
        """Read and delete the file of a rank that has ended."""
        with self._reading:
            if rank not in self._stacks:
                self._stacks[rank] = crash_of(row)

    def text(self) -> str:
        """Return all stacks that were read; "" for none."""
        with self._reading:
            return "\n".join(stack for stack in self._stacks.values() if stack)


def crash_of(row: Row) -> str:
    """Return the stack that a process left, and delete its file; "" where there is none."""
    if not row.crash:
        return ""
    try:
        text = Path(row.crash).read_text(encoding="utf-8", errors="replace")
        Path(row.crash).unlink(missing_ok=True)
    except OSError:
        return ""

    # "Fatal Python error: ...", then other threads, then the one that crashed, then a list of
    # extension modules.
    error, _, rest = text.partition("\n")
    _, head, stack = rest.partition("Current thread")
    crashed = (head + stack).partition("\n\n")[0]
    return "\n".join(part for part in (error, crashed) if part)
