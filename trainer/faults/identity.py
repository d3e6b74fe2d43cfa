"""Which process is meant: a machine, a process number, and the start of the process.

A host name and a process number alone mean another process in the next container, and after a
while on the same machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Identity:
    """One process of one machine.

    Args:
        machine: the boot and the namespace of process numbers: two containers of one machine have
            two.
        pid: its number in that namespace.
        started: when it started, in clock ticks since the boot; a number is given away again, with
            another start.
    """

    machine: str
    pid: int
    started: int

    @classmethod
    def own(cls) -> Identity:
        pid = os.getpid()
        _, started = _state_and_start(pid)
        return cls(own_machine(), pid, started)

    @property
    def is_here(self) -> bool:
        """Return whether its number means the same process here."""
        return self.machine == own_machine()

    @property
    def has_ended(self) -> bool:
        """Return whether it is known to have ended; of another machine nothing is known."""
        return self.is_here and not self._state

    @property
    def is_alive(self) -> bool:
        """Return whether it is known to live."""
        return self.is_here and bool(self._state)

    @property
    def is_stopped(self) -> bool:
        """Return whether it is known to be stopped."""
        return self.is_here and self._state == "T"

    def kill_if_stopped(self) -> None:
        """Kill it if it is of this machine and stopped.

        A stopped process takes no other signal, and its launcher would wait for it.
        """
        if self.is_stopped:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    @property
    def _state(self) -> str:
        """Return the letter of its state in /proc; "" where it has ended, waited for or not."""
        state, started = _state_and_start(self.pid)
        if started != self.started or state in ("Z", "X"):
            return ""
        return state


@cache
def own_machine() -> str:
    """Return the boot of this machine and its namespace of process numbers."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return uuid.uuid4().hex  # then no other process is known to be here


def _state_and_start(pid: int) -> tuple[str, int]:
    """Return the letter of a process's state and its start in clock ticks; ("", -1) for none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return "", -1
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])
