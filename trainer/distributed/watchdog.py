"""A watch over the ranks of a job: one that is gone, or that stands still, is named, and then the job ends.

A rank that dies takes its connections with it, and the others fail with errors of their own, or wait. One that is
stopped, or waits for a worker that never answers, closes nothing: the others wait for it until the time-out, half an
hour by default. So a thread of each rank writes twice a second what the rank does to the store that all share, and
looks at the process of its neighbour on the same machine: whether it lives, and whether it works.

A rank stands still where its process used no core for ``hang_seconds``, it is not in a collective, and no other rank
went on meanwhile; or where all of them wait in collectives, which then cannot be the same. A compiler, a slow step and
an evaluation use a core or a disk; one that writes a checkpoint, that waits for an answer over the network, or that is
under a debugger is let alone, unless it is stopped.

It costs the main thread nothing but the interpreter's lock, for some 0.1 ms twice a second.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import shlex
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import psutil

from ..errors import TrainerError
from ..text import columns
from .exit import claim_first_error, end_at_once, is_lost_peer
from .launcher import is_alive, launcher_processes

_PERIOD_SECONDS = 0.5
_FOUND_SECONDS = 2.0  # a rank whose connections broke waits so long to learn which one is gone
_IDLE_SHARE = 0.02  # of a core: what threads in the background use of a process that stands still
_GONE = (
    "is gone without a word (killed, out of memory, or aborted in C++, as where ranks use different parameters in one "
    "step without find_unused_parameters: true)"
)
_HERE = str(Path(__file__).parent)
_LIBRARIES = ("site-packages", "dist-packages", os.path.dirname(os.__file__))
_COLLECTIVES = (f"torch{os.sep}distributed{os.sep}", str(Path(_HERE, "agreement.py")))
_BACKWARD = "_engine_run_backward"  # waits for the gradients of the other ranks, which no frame of Python shows
# Those that wait for an answer from elsewhere, or for a person.
_LET_WAIT = ("socket.py", "ssl.py", "base_events.py", "pdb.py", "bdb.py", "pydevd.py", "cmd.py")
_serial = 0


class LostRank(TrainerError):
    """Another rank of the job is gone."""

    on_every_rank = False


class _Seen:
    """What a rank wrote last, and when (by this process's clock) it was last heard of."""

    def __init__(self) -> None:
        self.wrote: dict[str, Any] = {}
        self.heard = 0.0

    def update(self, wrote: dict[str, Any], now: float) -> None:
        if wrote["count"] != self.wrote.get("count"):
            self.heard = now
        self.wrote = wrote


class _Idleness:
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
        if closely and not self._family:
            self._family = {one: _cores(one) for one in [self.process, *self.process.children(recursive=True)]}
        # Runnable (it may wait for a core that others have), or in the kernel for a disk: twice, for all wake up a bit.
        self._active = self._active + 1 if any(map(_is_active, self._family)) else 0
        used = _cores(self.process) - self._used
        used_closely = sum(_cores(one) - before for one, before in self._family.items())
        allowed = 0.02 + _IDLE_SHARE * idle
        if self._active > 1 or max(used, used_closely) > allowed:
            self._restart()
        return time.monotonic() - self._since


def _cores(process: psutil.Process) -> float:
    """Return the seconds of cores that a process has used."""
    with contextlib.suppress(psutil.Error):
        used = process.cpu_times()
        return used.user + used.system
    return 0.0


def _is_active(process: psutil.Process) -> bool:
    """Tell whether a thread of a process has work for a core or waits for a disk."""
    try:
        states = [Path(task, "stat").read_text().rpartition(")")[2].split()[0] for task in _tasks(process.pid)]
    except OSError:  # no such system, or a thread that just ended
        states = []
    return bool({"R", "D"} & set(states))


def _tasks(pid: int) -> list[str]:
    folder = f"/proc/{pid}/task"
    return [f"{folder}/{task}" for task in os.listdir(folder)]


class Watchdog:
    """Watches the ranks while a training runs: ``with Watchdog(...):`` on every rank. One process has nobody to watch.

    Args:
        rank, world_size: of this process.
        position: returns the optimizer step, the phase, and a number that grows as the rank goes on. It is called from
            another thread.
        hang_seconds: how long a rank may stand still; None: for ever.
        advice: returns how to go on, for the end of the message.
        log: writes the message to the run's log.

    Raises:
        LostRank: at the end of the block, where it fails because another rank is gone.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        position: Callable[[], tuple[int, str, int]],
        hang_seconds: float | None,
        advice: Callable[[], str],
        log: Callable[[str], None],
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._position, self._advice, self._log = position, advice, log
        self._hang_seconds = hang_seconds
        # It is told by then, and not looked at by then for the first time.
        self._watched = None if hang_seconds is None else max(hang_seconds - 3 * _PERIOD_SECONDS, 2 * _PERIOD_SECONDS)
        self._host, self._count, self._ended = socket.gethostname(), 0, threading.Event()
        self._moves, self._moved = -1, 0.0
        self._telling = threading.Lock()
        self._seen: dict[int, _Seen] = {}
        self._neighbour: tuple[int, _Idleness] | None = None
        self._store: Any = None
        self._shared: Any = None
        self._last: dict[int, dict[str, Any]] = {}
        self._crash: Any = None

    def __enter__(self) -> Watchdog:
        global _serial
        _serial += 1
        if self.world_size > 1:
            import torch.distributed as dist

            # One of its own: another thread's wait must not hold it up.
            shared: Any = dist.distributed_c10d._get_default_store()
            self._shared = shared.clone()
            self._shared.set_timeout(timedelta(seconds=_FOUND_SECONDS))
            self._store = dist.distributed_c10d.PrefixStore(f"samecurve/watch/{_serial}", self._shared)
            self._main = threading.get_ident()
            if not faulthandler.is_enabled():
                # Read by the neighbour, so that it stands where a user reads first, and not above all else.
                self._crash = tempfile.NamedTemporaryFile("w", prefix="samecurve-crash-")
                faulthandler.enable(self._crash)
            self._write()
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.world_size == 1:
            return
        message = ""
        if error is not None and is_lost_peer(error):
            self._telling.acquire()  # for good: the thread tells nothing any more, or ends this process
            failed = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
            self._quietly(lambda: self._write(frames=failed))
            message = self._name_lost()
        self._ended.set()
        self._thread.join(timeout=2 * _FOUND_SECONDS)
        left = "finished" if error is None else f"left with {type(error).__name__}"
        self._quietly(lambda: self._write(left))
        if self._crash is not None:
            faulthandler.disable()
            self._crash.close()
        if message:
            raise LostRank(message) from error

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        woke = time.monotonic()
        self._quietly(self._look)
        while not self._ended.wait(_PERIOD_SECONDS if self._neighbour else _PERIOD_SECONDS / 10):
            now, before = time.monotonic(), woke
            woke = now
            if now - before > 4 * _PERIOD_SECONDS:  # this process was stopped, or had no core: it knows of nobody
                self._seen.clear()
                self._neighbour = None
            self._quietly(self._look)

    def _quietly(self, work: Callable[[], object]) -> None:
        """Do what asks the store. It is gone with the rank that held it, and torch prints a stack for each question."""
        try:
            work()
        except RuntimeError:
            self._store = self._shared = None
        except (OSError, psutil.Error, ValueError):
            return

    def _look(self) -> None:
        if self._store is not None:
            self._write()
            if self._store.check(["verdict"]):
                self._end("")
            if self._neighbour is None:
                self._find_neighbour()
            else:
                self._read(0)  # which may hold the store
                self._read(self._neighbour[0])
        if (rank := self._gone()) is not None:
            if not self._claimed():
                self._end(self._report({rank: _GONE}))
        elif self._watched is not None and self.rank < 2:  # two, of which one may be what stands still
            self._judge(self._watched)

    def _claimed(self, *, take: bool = False) -> bool:
        """Tell whether another rank tells what happened."""
        owner = claim_first_error(self._shared, take=take) if self._shared is not None else None
        return owner not in (None, "", str(self.rank))

    def _gone(self) -> int | None:
        """Return the rank of a process of this machine that ended while its training ran."""
        for rank, known in self._last.items():
            if rank != self.rank and known["host"] == self._host and "left" not in known and not _lives(known["pid"]):
                with contextlib.suppress(RuntimeError):
                    self._read(rank)  # it may have left meanwhile
                if "left" not in self._last[rank]:
                    return rank
        return None

    def _write(self, left: str = "", frames: Sequence[FrameType] = ()) -> None:
        (step, phase, moves), now = self._position(), time.monotonic()
        if moves != self._moves:
            self._moves, self._moved = moves, now
        self._count += 1
        known: dict[str, Any] = {"host": self._host, "pid": os.getpid(), "step": step, "phase": phase}
        known |= {"count": self._count, "unmoved": now - self._moved, "crash": self._crash.name if self._crash else ""}
        known |= {"calls": _calls(), **_doing(frames or _frames(self._main))}
        if self._neighbour is not None and self._watched is not None:
            rank, idleness = self._neighbour
            known["idle"] = [rank, round(idleness.seconds(self._watched), 1)]
        if left:
            known["left"] = left
        self._last[self.rank] = known
        if self._store is not None:
            self._store.set(str(self.rank), json.dumps(known))

    def _read(self, rank: int) -> dict[str, Any]:
        """Return what a rank wrote last; waits for its first."""
        if self._store is not None:
            self._last[rank] = json.loads(self._store.get(str(rank)))
        return self._last[rank]

    def _all(self) -> dict[int, dict[str, Any]]:
        """Return what every rank wrote last, as far as it is known."""
        ranks = [str(rank) for rank in range(self.world_size)]
        if self._store is not None:
            self._quietly(lambda: self._last.update(enumerate(map(json.loads, self._store.multi_get(ranks)))))
        return dict(sorted(self._last.items()))

    def _find_neighbour(self) -> None:
        """Find the next rank on this machine, around in a circle; a rank alone on its machine looks at itself."""
        if not self._store.check([str(rank) for rank in range(self.world_size)]):
            return  # some have not come so far
        every = self._all()
        ranks = [(self.rank + number) % self.world_size for number in range(1, self.world_size + 1)]
        rank = next(rank for rank in ranks if every[rank]["host"] == self._host)
        self._neighbour = rank, _Idleness(psutil.Process(every[rank]["pid"]))

    def _judge(self, watched: float) -> None:
        """End the job where a rank stands still. Nothing is read while this rank goes on."""
        now = time.monotonic()
        if now - self._moved < 2 * _PERIOD_SECONDS:
            self._seen.clear()
            return
        for rank, known in self._all().items():
            self._seen.setdefault(rank, _Seen()).update(known, now)
        every = {rank: seen.wrote for rank, seen in self._seen.items()}
        silent = {rank: now - seen.heard for rank, seen in self._seen.items()}
        if any(known["unmoved"] + silent[rank] < watched for rank, known in every.items()):
            return
        if any(known["let_wait"] or known["phase"] == "ending" for known in every.values()):
            return
        idle = dict(known["idle"] for known in every.values() if "idle" in known)
        still = {rank for rank in every if idle.get(rank, silent[rank]) >= watched}
        stopped = {rank for rank in still if silent[rank] >= watched}
        waiting = {rank for rank, known in every.items() if known["waits"]}
        # A bucket that is mounted as a folder takes its time, and no core of this machine.
        saving = {rank for rank, known in every.items() if known["phase"] == "saving"} - waiting - stopped
        if still | waiting != every.keys() or saving:
            return
        if found := stopped or still - waiting:
            texts = dict.fromkeys(found, "stands still") | dict.fromkeys(stopped, "is stopped, or its machine is")
            self._end(self._report(texts, hung=True))
        elif still == every.keys():
            behind = dict.fromkeys(self._behind(every), "has not entered what the others wait in")
            self._end(self._report(behind or dict.fromkeys(still, "waits in another call than others"), hung=True))

    @staticmethod
    def _behind(every: dict[int, dict[str, Any]]) -> set[int]:
        """Return the ranks that have begun fewer collectives than others, in some group that they share."""
        most: dict[str, int] = {}
        for known in every.values():
            most |= {group: max(count, most.get(group, 0)) for group, count in known["calls"].items()}
        return {r for r, known in every.items() if any(count < most[group] for group, count in known["calls"].items())}

    # -- the message ------------------------------------------------------------------------------

    def _name_lost(self) -> str:
        """Return the message for a broken connection; "" where another rank tells what happened, or nobody is gone."""
        seen: dict[int, _Seen] = {}
        end = time.monotonic() + _FOUND_SECONDS
        while (now := time.monotonic()) < end:
            if self._claimed():
                return ""
            for rank, known in self._all().items():
                seen.setdefault(rank, _Seen()).update(known, now)
                silent = rank != self.rank and now - seen[rank].heard > 3 * _PERIOD_SECONDS
                if known.get("left", "finished") != "finished" or rank == self._gone() or silent:
                    return self._report({rank: known.get("left") or _GONE})
            time.sleep(_PERIOD_SECONDS / 5)
        return ""

    def _report(self, ranks: dict[int, str], *, hung: bool = False) -> str:
        """Say what happened to which ranks, what every rank was doing, and how to go on."""
        crashes, now = [], datetime.now().isoformat(" ", "milliseconds")
        rows = [("rank", "host", "pid", "step", "phase", "doing", "collectives begun")]
        for rank, known in self._all().items():
            calls = ", ".join(f"{group} {count}" for group, count in known["calls"].items())
            doing = known.get("left") or known["doing"]
            if rank in ranks and known["host"] == self._host and known["crash"]:
                crashes.append(_read_once(Path(known["crash"])))
            rows.append((str(rank), known["host"], str(known["pid"]), str(known["step"]), known["phase"], doing, calls))
        lines = [f"rank {rank} {text}" for rank, text in sorted(ranks.items())]
        if hung:
            lines[0] += f": nothing in the job went on for {self._hang_seconds:g} s (hang_seconds)"
        return "\n".join(
            [f"{now} the job ends; its ranks:", *columns(rows), *filter(None, crashes), *lines, self._advice()]
        )

    def _end(self, message: str) -> None:
        """End this process, from the thread: the main one may wait for ever. "": another rank has told why."""
        if not self._telling.acquire(blocking=False):
            return  # the main thread tells it
        if message and self._claimed(take=True):
            message = ""
        if message:
            self._log(message)
        end_at_once(message, before=lambda: self._quietly(self._end_others))

    def _end_others(self) -> None:
        """Have the others end; one of this machine that is stopped takes no signal, and the launcher would wait."""
        if self._store is not None:
            self._store.set("verdict", "ended")
        for known in self._all().values():
            if known["host"] == self._host and known["pid"] != os.getpid():
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(known["pid"])
                    if process.status() == psutil.STATUS_STOPPED:
                        process.kill()


def _read_once(file: Path) -> str:
    """Return the stack of a process that crashed, from the file that it left, and delete that."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        file.unlink()
    except OSError:
        return ""
    # "Fatal Python error: ...", then other threads, then the one that crashed, then a list of extension modules.
    error, _, rest = text.partition("\n")
    return "\n".join(filter(None, [error, "".join(rest.partition("Current thread")[1:]).partition("\n\n")[0]]))


def _lives(pid: int) -> bool:
    try:
        return is_alive(psutil.Process(pid))
    except psutil.Error:
        return False


def _calls() -> dict[str, int]:
    """Return how many collectives this rank has begun in each of its groups, by the names of the groups."""
    groups = list(sys.modules["torch.distributed"].distributed_c10d._world.pg_map)
    return {_name_of(group): group._get_sequence_number_for_group() for group in groups}


def _name_of(group: Any) -> str:
    return str(group.group_name if group.group_desc in ("", "undefined") else group.group_desc)


def _frames(thread: int) -> list[FrameType]:
    """List the frames of a thread, the innermost first."""
    frame, frames = sys._current_frames().get(thread), []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _doing(frames: Sequence[FrameType]) -> dict[str, Any]:
    """Return what a thread is in, and whether it waits for other ranks."""
    frames = [frame for frame in frames if frame.f_code.co_filename != __file__]
    files = [frame.f_code.co_filename for frame in frames]
    inside = [frame for frame, file in zip(frames, files, strict=True) if any(part in file for part in _COLLECTIVES)]
    named = [frame for frame in inside if frame.f_code.co_name != "wrapper"]  # which torch puts around its collectives
    waits = bool(inside) or any(frame.f_code.co_name == _BACKWARD for frame in frames[:3])
    own = next((frame for frame, file in zip(frames, files, strict=True) if not _is_library(file)), frames[0])
    name = (named[-1] if named else own).f_code.co_name
    doing = f"{name} ({os.path.relpath(own.f_code.co_filename)}:{own.f_lineno})"
    return {"doing": doing, "waits": waits, "let_wait": any(os.path.basename(file) in _LET_WAIT for file in files[:6])}


def _is_library(file: str) -> bool:
    return file.startswith("<") or any(part in file for part in _LIBRARIES)


def resume_command(argument: str) -> str:
    """Return the command that started this job, with ``argument`` where it lacks it."""
    launchers = launcher_processes()
    line = launchers[-1].cmdline() if launchers else [sys.executable, *sys.argv]
    if line and os.path.basename(line[0]).startswith("python") and len(line) > 1 and not line[1].startswith("-"):
        line = [os.path.basename(line[1]), *line[2:]] if launchers else line
    text = shlex.join(line)
    return text if argument in text else f"{text} {argument}"
