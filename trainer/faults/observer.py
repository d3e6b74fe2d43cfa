"""A small process beside each rank, which sees whether the rank works, is stopped or has ended.

A rank cannot say so itself: while it is stopped, or in a call that keeps Python's lock, none of its
threads runs. The observer is its child, so it never takes another process for it; it answers
questions of any rank of the job over TCP (``observation.py``), and it ends with its rank.

It is started as a script, without the package and without site-packages: 10 MB, and some 0.1 ms of
a core each second.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

PERIOD_SECONDS = 0.5

# A process that has been idle for so long is looked at with its threads and children.
_CLOSELY_AFTER_SECONDS = 1.0
# What background threads use of a process that stands still: a share of a core, a moment of a core
# once, and what they write to logs.
_IDLE_SHARE = 0.05
_IDLE_SECONDS = 0.02
_IDLE_BYTES = 1 << 20
# How often, and for how long, a look that finds a thread runnable makes sure that it stays so.
_GLANCES = 4
_GLANCES_SECONDS = 0.2
# After a longer gap between two looks this process was stopped itself, and saw nothing.
_SLOWEST_LOOK_SECONDS = 4 * PERIOD_SECONDS

_Process = tuple[int, int]  # process number, and start in clock ticks


class Stat:
    """One line of /proc/PID/stat, or of a thread."""

    def __init__(self, path: str) -> None:
        with open(path, encoding="utf-8", errors="replace") as file:
            _, _, tail = file.read().rpartition(")")
        fields = tail.split()
        self.state = fields[0]
        self.parent = int(fields[1])
        # Of user and system, its own and those of its children that ended.
        ticks = sum(map(int, fields[11:15]))
        self.core_seconds = ticks / os.sysconf("SC_CLK_TCK")
        self.started = int(fields[19])


def stat_of(process: int | str) -> Stat | None:
    """Read what the system knows of a process, or of a thread; None where it has just ended.

    Args:
        process: its number, or "PID/task/TID" of a thread.
    """
    with contextlib.suppress(OSError, IndexError, ValueError):
        return Stat(f"/proc/{process}/stat")
    return None


class Activity:
    """The time for which a process and those that it started were idle, or stopped.

    Idle is what uses no core and no disk.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._looked = time.monotonic()
        self._restart()

    def _restart(self) -> None:
        """Measure from now on: the process works, or this one was away."""
        now = time.monotonic()
        stat = stat_of(self.pid)
        self._idle_since = now
        self._used = stat.core_seconds if stat else 0.0
        self._runnable_looks = 0
        self._family: dict[_Process, float] = {}  # core seconds at the first look
        self._bytes: int | None = None
        self._stopped_since: dict[_Process, float] = {}

    def look(self) -> None:
        """Look at the process. It is called twice a second."""
        now = time.monotonic()
        was_away = now - self._looked > _SLOWEST_LOOK_SECONDS
        self._looked = now
        if was_away:
            self._restart()
        stat = stat_of(self.pid)
        if stat is None:
            return

        idle = now - self._idle_since
        is_looked_at_closely = idle > _CLOSELY_AFTER_SECONDS
        family = {(self.pid, stat.started): stat}
        if is_looked_at_closely:
            family |= _descendants(self.pid)
        self._note_stopped(family, now)

        allowed = _IDLE_SECONDS + _IDLE_SHARE * idle
        works = stat.core_seconds - self._used > allowed
        if is_looked_at_closely:
            family_works = self._family_works(family, allowed)
            works = works or family_works
        if works:
            stopped_since = self._stopped_since
            self._restart()
            self._stopped_since = stopped_since

    def _note_stopped(self, family: dict[_Process, Stat], now: float) -> None:
        stopped_since = {}
        for process, stat in family.items():
            if stat.state == "T":
                stopped_since[process] = self._stopped_since.get(process, now)
        self._stopped_since = stopped_since

    def _family_works(self, family: dict[_Process, Stat], allowed: float) -> bool:
        """Return whether the process or one that it started works.

        Args:
            allowed: core seconds that an idle family may have used.
        """
        pids = [pid for pid, _ in family]

        used = self._core_seconds_used(family)
        uses_cores = used > allowed

        # Other processes may have the cores. Twice in a row: with much to do a machine is slow to
        # serve what wakes up for a moment.
        if _stays_runnable(pids):
            self._runnable_looks += 1
        else:
            self._runnable_looks = 0
        waits_for_cores = self._runnable_looks > 1

        transferred = sum(_disk_bytes(pid) for pid in pids)
        if self._bytes is None:
            self._bytes = transferred
        uses_disk = transferred - self._bytes > _IDLE_BYTES

        return uses_cores or waits_for_cores or uses_disk

    def _core_seconds_used(self, family: dict[_Process, Stat]) -> float:
        """Return the core seconds that a family used since the first look at it."""
        is_first_look = not self._family
        used = 0.0
        for process, stat in family.items():
            if process not in self._family:
                # A process that came since has worked since: compilers come and go.
                self._family[process] = stat.core_seconds if is_first_look else 0.0
            used += stat.core_seconds - self._family[process]
        return used

    def report(self) -> dict[str, Any]:
        """Return what is known, in seconds until now: the fields of ``observation.Report``."""
        now = time.monotonic()
        stopped = {pid: round(now - since, 1) for (pid, _), since in self._stopped_since.items()}
        own = stopped.pop(self.pid, 0.0)
        return {
            "idle": round(now - self._idle_since, 1),
            "stopped": own,
            "stopped_children": {str(pid): seconds for pid, seconds in stopped.items()},
            "traced": _is_traced(self.pid),
        }

    def kill_stopped(self) -> None:
        """Kill what was stopped at the last look, and still is: the process and its children."""
        for pid, started in self._stopped_since:
            stat = stat_of(pid)
            if stat is not None and stat.started == started and stat.state == "T":
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)


def _descendants(ancestor: int) -> dict[_Process, Stat]:
    """Return all processes below another, but for this one."""
    children: dict[int, list[tuple[int, Stat]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        stat = stat_of(int(name))
        if stat is not None:
            children.setdefault(stat.parent, []).append((int(name), stat))

    found: dict[_Process, Stat] = {}
    parents = [ancestor]
    while parents:
        for pid, stat in children.get(parents.pop(), []):
            found[pid, stat.started] = stat
            parents.append(pid)
    return found


def _stays_runnable(pids: Sequence[int]) -> bool:
    """Return whether some thread of processes wants a core, or waits for a disk, for a while.

    One glance does not tell: what serves the other ranks' questions wakes up for a moment twice a
    second, and just when this process looks.
    """
    for _ in range(_GLANCES):
        if not any(_has_runnable_thread(pid) for pid in pids):
            return False
        time.sleep(_GLANCES_SECONDS / _GLANCES)
    return True


def _has_runnable_thread(pid: int) -> bool:
    """Return whether a thread of a process has a core or waits for one, or waits for a disk."""
    with contextlib.suppress(OSError):  # it just ended
        for task in os.listdir(f"/proc/{pid}/task"):
            stat = stat_of(f"{pid}/task/{task}")
            if stat is not None and stat.state in ("R", "D"):
                return True
    return False


def _disk_bytes(pid: int) -> int:
    """Return the bytes that a process has read from and written to disks."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/io", encoding="ascii") as file:
        counts = dict(line.split(": ") for line in file.read().splitlines())
        return int(counts["read_bytes"]) + int(counts["write_bytes"])
    return 0


def _is_traced(pid: int) -> bool:
    """Return whether a debugger is attached to a process."""
    path = f"/proc/{pid}/status"
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("TracerPid:"):
                return line.split()[1] != "0"
    return False


class Observer:
    """Answers questions about the parent of this process, one line each.

    A question is the password and a word: ``look`` is answered by a report, ``claim`` by whether
    nobody claimed before, and ``kill`` kills what is stopped.
    """

    def __init__(self, parent: int, password: str) -> None:
        self.parent = parent
        self.password = password
        self.activity = Activity(parent)
        self.is_claimed = False

    @property
    def is_orphan(self) -> bool:
        return os.getppid() != self.parent

    def answer(self, question: str) -> dict[str, Any]:
        """Return the answer to a question; {} for a wrong password."""
        password, _, word = question.strip().partition(" ")
        if password != self.password:
            return {}
        if self.is_orphan:
            return {"gone": True}

        if word == "claim":
            is_first = not self.is_claimed
            self.is_claimed = True
            return {"first": is_first}
        if word == "kill":
            self.activity.look()
            self.activity.kill_stopped()
        return self.activity.report()

    def serve(self, listener: socket.socket) -> None:
        """Look and answer until the parent has ended; then kill what it left stopped.

        Nobody else would continue that.
        """
        while not self.is_orphan:
            self.activity.look()
            ready, _, _ = select.select([listener], [], [], PERIOD_SECONDS)
            if ready:
                with contextlib.suppress(OSError):
                    connection, _ = listener.accept()
                    self._converse(connection)
        self.activity.kill_stopped()

    def _converse(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(PERIOD_SECONDS)
            question = connection.recv(256).decode("ascii", errors="replace")
            connection.sendall(json.dumps(self.answer(question)).encode())


def main() -> None:
    # A scheduler sends these to every process of a job; this one has nothing to finish, and ends
    # with its rank.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)

    parent, descriptor = map(int, sys.argv[1:3])
    observer = Observer(parent, os.environ["OBSERVER_PASSWORD"])
    listener = socket.socket(fileno=descriptor)
    observer.serve(listener)


if __name__ == "__main__":
    main()
