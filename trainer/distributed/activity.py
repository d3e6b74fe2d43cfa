"""What a process is doing, seen from outside (cores, disks) and from within (the frames of a thread)."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from .launcher import is_alive

_IDLE_SHARE = 0.05  # of a core: what threads in the background use of a process that stands still, these included
WATCH = "watch"  # the name of its threads
_HERE = str(Path(__file__).parent)
_LIBRARIES = ("site-packages", "dist-packages", os.path.dirname(os.__file__))
_WATCHDOG = str(Path(_HERE, "watchdog.py"))
_COLLECTIVES = (f"torch{os.sep}distributed{os.sep}", str(Path(_HERE, "agreement.py")), str(Path(_HERE, "votes.py")))
_BACKWARD = "_engine_run_backward"  # waits for the gradients of the other ranks, which no frame of Python shows
# Those that wait for an answer from elsewhere, or for a person.
_LET_WAIT = ("socket.py", "ssl.py", "base_events.py", "pdb.py", "bdb.py", "pydevd.py", "cmd.py")


class Idleness:
    """How long a process, and those that it started, used no core and no disk.

    Its own share of a core is looked at each time, which costs 50 µs; its threads and its workers only where it is
    idle.
    """

    def __init__(self, process: psutil.Process) -> None:
        self.process = process
        self._restart()

    def _restart(self) -> None:
        self._since, self._used, self._active = time.monotonic(), _cores(self.process), 0
        self._family: dict[psutil.Process, float] = {}

    def seconds(self, watched: float) -> float:
        """Return the seconds since it last worked; from half of ``watched`` on, threads and workers count as well."""
        idle = time.monotonic() - self._since
        closely = idle > watched / 2
        if closely:  # who came since has worked since: compilers come and go
            before = bool(self._family)
            for one in [self.process, *self.process.children(recursive=True)]:
                self._family.setdefault(one, 0.0 if before else _cores(one))
        # Twice in a row, for whatever waits wakes up now and then.
        self._active = self._active + 1 if any(map(_is_active, self._family)) else 0
        used = _cores(self.process) - self._used
        used_closely = sum(_cores(one) - before for one, before in self._family.items())
        allowed = 0.02 + _IDLE_SHARE * idle
        if self._active > 1 or max(used, used_closely) > allowed:
            self._restart()
        return time.monotonic() - self._since


def _cores(process: psutil.Process) -> float:
    """Return the seconds of cores that a process has used, and those of its own that ended."""
    with contextlib.suppress(psutil.Error):
        used = process.cpu_times()
        return used.user + used.system + used.children_user + used.children_system
    return 0.0


def _is_active(process: psutil.Process) -> bool:
    """Tell whether a thread of a process is runnable (others may have the cores), or waits for a disk."""
    with contextlib.suppress(OSError):  # another system, or the process just ended
        return any(map(_works, Path(f"/proc/{process.pid}/task").iterdir()))
    return False


def _works(task: Path) -> bool:
    # Those of the watch are runnable for a moment twice a second: they look at the neighbour.
    with contextlib.suppress(OSError):  # a thread that just ended
        name, _, fields = (task / "stat").read_text().partition("(")[2].rpartition(")")
        state = fields.split()[0]
        return state == "D" or (state == "R" and name != WATCH)
    return False


def name_watch() -> None:
    """Name this thread, and those that it starts from now on, as threads of the watch."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(WATCH)


def lives(pid: int) -> bool:
    try:
        return is_alive(psutil.Process(pid))
    except psutil.Error:
        return False


def frames_of(thread: int) -> list[FrameType]:
    """List the frames of a thread, the innermost first."""
    frame, frames = sys._current_frames().get(thread), []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def doing(frames: Sequence[FrameType]) -> dict[str, Any]:
    """Return what a thread is in, and whether it waits for other ranks."""
    frames = [frame for frame in frames if frame.f_code.co_filename != _WATCHDOG]
    files = [frame.f_code.co_filename for frame in frames]
    inside = [frame for frame, file in zip(frames, files, strict=True) if any(part in file for part in _COLLECTIVES)]
    named = [frame for frame in inside if frame.f_code.co_name != "wrapper"]  # which torch puts around its collectives
    waits = bool(inside) or any(frame.f_code.co_name == _BACKWARD for frame in frames[:3])
    own = next((frame for frame, file in zip(frames, files, strict=True) if not _is_library(file)), frames[0])
    name = (named[-1] if named else own).f_code.co_name
    text = f"{name} ({os.path.relpath(own.f_code.co_filename)}:{own.f_lineno})"
    return {"doing": text, "waits": waits, "let_wait": any(os.path.basename(file) in _LET_WAIT for file in files[:6])}


def _is_library(file: str) -> bool:
    return file.startswith("<") or any(part in file for part in _LIBRARIES)
