"""The watch over the ranks of a job: each rank sends a heartbeat to the store that all share.

A rank that dies breaks its connections, and the other ranks fail. A rank that is stopped, or waits
for an answer that never comes, breaks nothing: the others wait for it until ``timeout_minutes``.

A thread of each rank writes its step, its phase and its line of Python to the store every two
seconds, and looks at the other ranks every second. Every rank judges, so that no two stopped ranks
go unseen:

- A process of this machine that is stopped for eight seconds, or that is gone, ends the job.
- A rank that sends no heartbeat for ten seconds is told. After a minute the job ends, for a call in
  C may hold the interpreter's lock that long. While data and model are built, the job ends after
  ``timeout_minutes``.
- If no rank has moved for a minute, one line tells the step, phase and line of each. The job ends
  after ``timeout_minutes`` with the stacks of all ranks, if no rank uses its CPU.
- A store that is gone or does not answer ends the job, once this rank does not move either.

To end the job is to print one message, to tell the others through the store, to kill the stopped
processes of this machine, and to leave. The watch lasts until the last barrier of the process.

It costs the main thread the interpreter's lock for some 0.1 ms a second. The states of processes
come from /proc: ``psutil`` compares the times at which processes started, and these change if
somebody sets the clock.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from ..errors import TrainerError
from .exit import (
    after_error,
    after_last_barrier,
    claim_first_error,
    end_at_once,
    is_lost_peer,
    is_written,
)

LOOK_SECONDS = 1.0
BEAT_SECONDS = 2.0
STOPPED_SECONDS = 8.0  # somebody may continue a stopped process in a moment
GONE_SECONDS = 3.0  # the error of a rank that ends, or its broken connection, says more
NAMED_SECONDS = 10.0
SILENT_SECONDS = 60.0
STILL_SECONDS = 60.0
# If this thread slept for longer, this process was stopped, and knows nothing of the others.
_ASLEEP_SECONDS = 5.0
# A rank reads the heartbeats of so many ranks behind it: in a large job the store serves them all.
_NEIGHBOURS = 32
# Share of a core above which a process counts as working.
_WORKING = 0.2

Position = tuple[int, str, int]


class LostRank(TrainerError):
    """Another rank of the job is gone."""

    on_every_rank = False


@dataclass(frozen=True, kw_only=True)
class Process:
    """The process of a rank.

    Args:
        host: the name of its machine, for messages.
        machine: the boot of the machine and its namespace of process numbers.
        pid: its number in that namespace.
        started: its start in clock ticks since the boot. A number is given away again, with another
            start.
    """

    host: str
    machine: str
    pid: int
    started: int

    @classmethod
    def own(cls) -> Process:
        pid = os.getpid()
        _, started = _state_and_start(pid)
        return cls(host=socket.gethostname(), machine=_machine(), pid=pid, started=started)

    @property
    def state(self) -> str:
        """Return ``stopped``, ``traced`` by a debugger, ``gone``, ``alive``, or "" if unknown."""
        if self.machine != _machine():
            return ""
        letter, started = _state_and_start(self.pid)
        if started != self.started or letter in ("Z", "X"):
            return "gone"
        return {"T": "stopped", "t": "traced"}.get(letter, "alive")


def _machine() -> str:
    """Return the boot of this machine and its namespace of process numbers."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def _state_and_start(pid: int) -> tuple[str, int]:
    """Return the letter of a process's state and its start in clock ticks, or ("", -1)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return "", -1
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a rank writes with a heartbeat.

    Args:
        beats: how many heartbeats the rank has sent.
        step: the optimizer steps that are done.
        phase: what the rank does, such as ``training`` or ``evaluation``; "" between two jobs.
        moves: a number that grows as the rank moves on.
        trained: whether a step was made in this phase of the program.
        line: the line of Python that the main thread is at.
        working: whether the process uses its CPU.
        debugged: whether a debugger is loaded, which may halt all threads.
        left: whether the rank has left the job in order.
    """

    beats: int
    step: int
    phase: str
    moves: int
    trained: bool = False
    line: str = ""
    working: bool = True
    debugged: bool = False
    left: bool = False

    @property
    def text(self) -> str:
        return f"step {self.step}, {self.phase or 'outside of the trainer'}, {self.line}"


@dataclass
class _Job:
    """The part of the program that is watched for standing still.

    Args:
        position: returns the optimizer step, the phase and a number that grows as the rank moves.
            Another thread calls it.
        advice: returns how to go on after the end.
        log: writes a message to the log of the run.
        first_step: the step at which this part began.
    """

    position: Callable[[], Position]
    advice: Callable[[], str]
    log: Callable[[str], None]
    first_step: int


class Heartbeat:
    """The watch of one rank over the others.

    Args:
        rank, world_size: of this process.
        store: the store that all ranks share, which this thread has for itself.
        timeout: seconds after which a job that stands still ends (``timeout_minutes``).
    """

    def __init__(self, rank: int, world_size: int, store: Any, timeout: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self.job: _Job | None = None
        self._store = store
        behind = [(rank + step) % world_size for step in range(1, world_size)]
        self._neighbours = behind[:_NEIGHBOURS]

        self.processes: dict[int, Process] = {}
        self.rows: dict[int, Row] = {}
        self._heard: dict[int, float] = {}  # when the newest row of a rank was seen first
        self._moved: dict[int, float] = {}  # when a rank was seen to move last
        self._found: dict[tuple[int, str], float] = {}  # since when a process is in a state
        self._told: set[int] = set()  # ranks that were told to be silent
        self._has_told_stillness = False

        now = time.monotonic()
        self._beats = 0
        self._cpu = (now, 0.0)
        self._answered = now  # when the store answered last
        self._store_is_gone = False
        self._must_end = False  # another rank has ended the job
        self._exchange: threading.Thread | None = None
        self._has_left = threading.Event()
        self._ending = threading.Lock()  # who holds this lock ends the process
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Tell the others which process this is, learn which they are, and begin to watch.

        Collective: each rank waits for the others, since a store that stops tells nothing more.
        """
        own = Process.own()
        self.processes[self.rank] = own
        self._store.set(f"process/{self.rank}", json.dumps(asdict(own)))
        self._note_own()
        self._send()
        self._store.set_timeout(timedelta(seconds=self.timeout))
        self._store.wait([f"row/{rank}" for rank in self._neighbours])
        self._read(self._neighbours)
        self._store.set_timeout(timedelta(seconds=BEAT_SECONDS))
        self._thread.start()

    def leave(self) -> None:
        """End the watch in order: the others do not miss this rank."""
        if self._has_left.is_set():
            return
        self._has_left.set()
        self._note_own()
        self._ask_briefly(self._send)

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        woke = time.monotonic()
        beaten = 0.0
        while not self._has_left.wait(LOOK_SECONDS):
            now = time.monotonic()
            if now - woke > _ASLEEP_SECONDS:
                self._begin_anew(now)
            woke = now
            if now - beaten >= BEAT_SECONDS:
                beaten = now
                self._note_own()
                self._exchange_if_free()
            self._judge(time.monotonic())

    def _exchange_if_free(self) -> None:
        """Meet the others in a thread of its own: a store that is stopped never answers."""
        if self._exchange is None or not self._exchange.is_alive():
            self._exchange = threading.Thread(target=self._meet_others, daemon=True)
            self._exchange.start()
            self._exchange.join(LOOK_SECONDS)

    def _begin_anew(self, now: float) -> None:
        """Forget since when the others are silent: this process was stopped itself."""
        self._found.clear()
        self._heard = dict.fromkeys(self._heard, now)
        self._moved = dict.fromkeys(self._moved, now)
        self._answered = now

    def _meet_others(self) -> None:
        """Send a heartbeat and read those of the others."""
        if self._store_is_gone:
            return
        try:
            self._send()
            self._must_end = self._must_end or self._store.check(["end"])
            self._read(self._neighbours)
        except (RuntimeError, OSError) as error:
            # A machine with too much to do may answer the next question.
            self._store_is_gone = "timeout" not in str(error).lower()
        else:
            self._answered = time.monotonic()

    def _note_own(self) -> None:
        self._beats += 1
        self._note(self.rank, self._own_row())

    def _send(self) -> None:
        self._store.set(f"row/{self.rank}", json.dumps(asdict(self.rows[self.rank])))

    def _own_row(self) -> Row:
        step, phase, moves = 0, "", 0
        trained = False
        job = self.job
        if job is not None:
            step, phase, moves = job.position()
            trained = step > job.first_step

        now = time.monotonic()
        since, spent_before = self._cpu
        spent = time.process_time()
        self._cpu = (now, spent)
        return Row(
            beats=self._beats,
            step=step,
            phase=phase,
            moves=moves,
            trained=trained,
            line=_line_of_main_thread(),
            working=spent - spent_before > _WORKING * (now - since),
            debugged="pydevd" in sys.modules or "debugpy" in sys.modules,
            left=self._has_left.is_set(),
        )

    def _read(self, ranks: Sequence[int]) -> None:
        """Read the heartbeats of ranks. One question serves all ranks that have come."""
        for rank in ranks:
            if rank not in self.processes and self._store.check([f"row/{rank}"]):
                process = json.loads(self._store.get(f"process/{rank}"))
                self.processes[rank] = Process(**process)

        come = [rank for rank in ranks if rank in self.processes and rank != self.rank]
        rows = self._store.multi_get([f"row/{rank}" for rank in come]) if come else []
        for rank, text in zip(come, rows, strict=True):
            self._note(rank, Row(**json.loads(text)))

    def _note(self, rank: int, row: Row) -> None:
        now = time.monotonic()
        before = self.rows.get(rank)
        self.rows[rank] = row
        if before is None or before.beats != row.beats:
            self._heard[rank] = now
        if before is None or _place(before) != _place(row):
            self._moved[rank] = now

    # -- the judgement ----------------------------------------------------------------------------

    def _judge(self, now: float) -> None:
        if self._must_end:
            self._end("", stacks=self._stands_still(now, STILL_SECONDS))
        for rank, process in list(self.processes.items()):
            self._judge_process(rank, process, now)
        for rank in list(self.processes):
            self._judge_silence(rank)
        self._judge_store(now)
        self._judge_stillness(now)

    def _judge_process(self, rank: int, process: Process, now: float) -> None:
        """End the job if a process of this machine is stopped or gone."""
        state = process.state
        for other in ("stopped", "gone"):
            if state != other:
                self._found.pop((rank, other), None)
        if rank == self.rank or state not in ("stopped", "gone") or self._has_ended(rank):
            return
        if state == "gone" and self.job is None and not is_written():
            return  # a script of one's own, in which this rank waits for nobody
        since = self._found.setdefault((rank, state), now)
        limit = STOPPED_SECONDS if state == "stopped" else GONE_SECONDS
        if now - since >= limit:
            self._end(f"{self._name(rank)} {_SAID[state]}")

    def _judge_silence(self, rank: int) -> None:
        """Tell that a rank sends no heartbeat. End the job if that lasts."""
        row = self.rows.get(rank)
        if row is None or rank == self.rank or self._has_ended(rank):
            return
        # Only answers of the store count: a store that is slow makes no rank silent.
        silent = self._answered - self._heard[rank]
        if silent < NAMED_SECONDS or row.debugged or self.processes[rank].state == "traced":
            self._told.discard(rank)
            return

        is_building = row.phase == BUILDING
        limit = self.timeout if is_building else SILENT_SECONDS
        if silent >= limit:
            self._end(f"{self._name(rank)} has sent no heartbeat for {silent:.0f} s: {row.text}")
        elif rank not in self._told:
            self._told.add(rank)
            self._say(
                f"silent-{rank}-{row.beats}",
                f"{self._name(rank)} has sent no heartbeat for {silent:.0f} s: {row.text}. The job "
                f"ends after {limit:.0f} s",
            )

    def _judge_store(self, now: float) -> None:
        """End the job if the store does not answer, and this rank does not move either."""
        silent = now - self._answered
        limit = NAMED_SECONDS if self._store_is_gone else SILENT_SECONDS
        row = self.rows[self.rank]
        if row.phase == BUILDING and not self._store_is_gone:
            limit = self.timeout
        still = now - self._moved[self.rank]
        if self.job is not None and min(silent, still) >= limit:
            word = "is gone" if self._store_is_gone else "does not answer"
            self._end(f"the store that the ranks share {word}, for {silent:.0f} s: {row.text}")

    def _judge_stillness(self, now: float) -> None:
        """Tell that no rank moves. End the job if that lasts."""
        if not self._stands_still(now, min(STILL_SECONDS, self.timeout / 2)):
            self._has_told_stillness = False
            return
        rows = [row for rank, row in self.rows.items() if not self._has_ended(rank)]
        is_idle = all(row.trained and not row.working for row in rows)
        seconds = now - max(self._moved.values())
        if is_idle and seconds >= self.timeout - 2 * BEAT_SECONDS:
            text = f"no rank has moved for {seconds:.0f} s (timeout_minutes): {self._table()}"
            self._end(text, stacks=True)
        elif not self._has_told_stillness:
            self._has_told_stillness = True
            own = self.rows[self.rank]
            self._say(
                f"still-{own.phase}-{own.step}",
                f"no rank has moved for {seconds:.0f} s, the job goes on: {self._table()}",
            )

    def _stands_still(self, now: float, seconds: float) -> bool:
        """Return whether all ranks that were read are in a job, and none has moved for so long."""
        if any(row.debugged or not row.phase for row in self.rows.values()):
            return False
        return all(now - moved >= seconds for moved in self._moved.values())

    def _has_ended(self, rank: int) -> bool:
        row = self.rows.get(rank)
        return row is not None and row.left

    # -- messages ---------------------------------------------------------------------------------

    def _name(self, rank: int) -> str:
        process = self.processes[rank]
        return f"rank {rank} (process {process.pid} on {process.host})"

    def _table(self) -> str:
        """Return where each rank is, in one line. Ranks at the same place stand together."""
        if self.world_size > len(self.rows):
            self._ask_briefly(lambda: self._read(range(self.world_size)))
        places: dict[str, list[str]] = {}
        for rank, row in sorted(self.rows.items()):
            places.setdefault(row.text, []).append(str(rank))
        parts = []
        for text, ranks in places.items():
            word = "ranks" if len(ranks) > 1 else "rank"
            parts.append(f"{word} {', '.join(ranks)}: {text}")
        return "; ".join(parts)

    def _say(self, name: str, text: str) -> None:
        """Print a line, if no other rank has printed the line of this name."""
        said: list[int] = []
        self._ask_briefly(lambda: said.append(self._store.add(f"said/{name}", 1)))
        if said in ([], [1]):
            print(f"rank {self.rank}: {text}", file=sys.stderr, flush=True)
            if self.job is not None:
                self.job.log(text)

    def _end(self, finding: str, *, stacks: bool = False) -> None:
        """End this process, and the job with it.

        Args:
            finding: why. It is "" if another rank has ended the job, and prints the reason.
            stacks: whether each rank prints the stacks of its threads.
        """
        if not self._ending.acquire(blocking=False):
            return  # the main thread ends this process
        message = ""
        if finding and self._is_first():
            parts = [f"{finding}. The job ends.", f"Its ranks: {self._table()}"]
            if self.job is not None:
                parts.append(self.job.advice())
            message = "\n".join(parts)

        def before() -> None:
            if message and self.job is not None:
                self.job.log(message)
            if stacks:
                faulthandler.dump_traceback(all_threads=True)
            self._kill_stopped()
            self._tell_the_end()

        end_at_once(message, before=before, code=0 if is_written() else 1)

    def _is_first(self) -> bool:
        """Return whether this rank prints why the job ends."""
        owner = None if self._store_is_gone else claim_first_error(self._store)
        if owner is not None:
            return owner == str(self.rank)
        # No store answers: the first living rank of this machine prints.
        alive = [rank for rank, process in self.processes.items() if process.state == "alive"]
        return self.rank == min(alive)

    def _kill_stopped(self) -> None:
        """Kill the stopped ranks of this machine. They take no other signal."""
        holder = self.processes.get(0)
        if holder is not None and self._holds_store(0) and holder.state == "stopped":
            self._store_is_gone = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # torch prints C++ stacks for its end
        for process in self.processes.values():
            if process.state == "stopped":
                with contextlib.suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)

    def _tell_the_end(self) -> None:
        """Tell the other ranks to end, and keep the store until they have read so."""
        self._ask_briefly(lambda: self._store.set("end", ""))
        if not self._store_is_gone:
            time.sleep(1.5 * BEAT_SECONDS)

    def _ask_briefly(self, work: Callable[[], object]) -> None:
        """Ask the store, which may be stopped and never answer."""
        if self._store_is_gone:
            return

        def ask() -> None:
            with contextlib.suppress(RuntimeError, OSError):
                work()

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(LOOK_SECONDS)

    # -- the main thread --------------------------------------------------------------------------

    def end_others(self) -> None:
        """Tell the others to end, after the error of this rank was printed.

        The others ask the store who prints the first error. The store goes with rank 0, unless the
        launcher holds it.
        """
        if self._holds_store(self.rank):
            self._tell_the_end()

    def _holds_store(self, rank: int) -> bool:
        return rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"

    def explain(self, error: BaseException) -> str:
        """Return which rank is gone, after a connection broke. It is "" if no rank is known to be.

        It is also "" if another rank prints the reason.
        """
        self._ending.acquire()  # for good: the thread ends nothing any more
        end = time.monotonic() + GONE_SECONDS
        while time.monotonic() < end:
            for rank, process in list(self.processes.items()):
                if process.state == "gone" and not self._has_ended(rank):
                    owner = claim_first_error(self._store, take=False)
                    if owner:
                        return ""
                    return f"{self._name(rank)} {_SAID['gone']}\nIts ranks: {self._table()}"
            time.sleep(LOOK_SECONDS / 5)
        return ""


BUILDING = "set-up"
_SAID: Mapping[str, str] = {
    "stopped": "is stopped",
    "gone": (
        "is gone: killed, out of memory, or aborted in C++ (as if ranks use different parameters "
        "in one step without find_unused_parameters: true)"
    ),
}


def _place(row: Row) -> tuple[int, str, int]:
    return row.step, row.phase, row.moves


def _line_of_main_thread() -> str:
    """Return file and line of the main thread: the innermost line that is not of a package."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    innermost = frame
    while frame is not None:
        file = frame.f_code.co_filename
        is_own = "site-packages" not in file and not file.startswith(_STANDARD_LIBRARY)
        if is_own and not file.startswith("<"):
            break
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return "no Python"
    folder, name = os.path.split(frame.f_code.co_filename)
    place = os.path.join(os.path.basename(folder), name)
    return f"{place}:{frame.f_lineno} in {frame.f_code.co_name}"


_STANDARD_LIBRARY = os.path.dirname(os.__file__)


# -- the watch of this process --------------------------------------------------------------------

_watch: Heartbeat | None = None


def start(timeout: timedelta) -> None:
    """Watch the ranks of this job from now on, if this process has others. Collective."""
    global _watch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore

    from ..private.torch import default_store

    if _watch is not None or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    # A connection of its own: the wait of another thread must not hold it up.
    store = PrefixStore("samecurve/heartbeat", default_store().clone())
    _watch = Heartbeat(dist.get_rank(), dist.get_world_size(), store, timeout.total_seconds())
    _watch.start()
    after_last_barrier(_watch.leave)
    after_error(_watch.end_others)
    atexit.register(_leave_in_order)


def _leave_in_order() -> None:
    """Leave at the end of a script that calls no ``run_and_exit``, unless it ends by an error."""
    if _watch is not None and getattr(sys, "last_value", None) is None:
        _watch.leave()
        if _watch.rank == 0:
            time.sleep(BEAT_SECONDS)  # the store may go with this process


@contextlib.contextmanager
def watched(
    position: Callable[[], Position],
    *,
    advice: Callable[[], str],
    log: Callable[[str], None] = lambda text: None,
) -> Iterator[None]:
    """Watch that the ranks move on in a block that all enter. One process has nobody to watch.

    Args:
        position: returns the optimizer step, the phase, and a number that grows as the rank moves
            on. Another thread calls it.
        advice: returns how to go on after the end of the job.
        log: writes a message to the log of the run.

    Raises:
        LostRank: the block fails because another rank is gone.
    """
    watch = _watch
    if watch is None:
        yield
        return

    around = watch.job
    watch.job = _Job(position, advice, log, first_step=position()[0])
    try:
        yield
    except Exception as error:
        if is_lost_peer(error):
            message = watch.explain(error)
            if message:
                raise LostRank(f"{message}\n{advice()}") from error
        raise
    finally:
        watch.job = around
