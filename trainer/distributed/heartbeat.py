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
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import TrainerError
from .exit import (
    at_the_end,
    claim_first_error,
    end_at_once,
    is_lost_peer,
    is_written,
)

LOOK_SECONDS = 1.0
BEAT_SECONDS = 2.0
GONE_SECONDS = 3.0  # the error of a rank that ends, or its broken connection, says more
NAMED_SECONDS = 10.0
LONG_SECONDS = 60.0  # of silence, or of standing still
# If this thread slept for longer, this process was stopped, and knows nothing of the others.
_ASLEEP_SECONDS = 5.0
# A rank reads the heartbeats of so many ranks behind it: in a large job the store serves them all.
_NEIGHBOURS = 32
# Share of a core above which a process counts as working.
_WORKING = 0.2
BUILDING = "set-up"
_GONE = (
    "is gone: killed, out of memory, or aborted in C++ (as if ranks use different parameters in "
    "one step without find_unused_parameters: true)"
)

# How long a process of this machine may be in a state. Somebody may continue a stopped process in a
# moment.
_PATIENCE = {"stopped": (8.0, "is stopped"), "gone": (GONE_SECONDS, _GONE)}
_LIBRARIES = (os.path.dirname(os.__file__), sys.prefix, "<")

Position = tuple[int, str, int]


class LostRank(TrainerError):
    """Another rank of the job is gone."""

    on_every_rank = False


class Process(NamedTuple):
    """The process of a rank.

    Args:
        machine: the boot of its machine and the namespace of process numbers.
        host: the name of its machine, for messages.
        pid: its number in the namespace.
        started: its start in clock ticks since the boot. A number is given away again, with another
            start.
    """

    machine: str
    host: str
    pid: int
    started: int

    @classmethod
    def own(cls) -> Process:
        pid = os.getpid()
        return cls(_machine(), socket.gethostname(), pid, _state_and_start(pid)[1])

    @property
    def state(self) -> str:
        """Return ``stopped``, ``traced`` by a debugger, ``gone``, ``alive``, or "" if unknown."""
        if self.machine != _machine():
            return ""
        letter, started = _state_and_start(self.pid)
        if started != self.started or letter in "ZX":
            return "gone"
        return {"T": "stopped", "t": "traced"}.get(letter, "alive")


def _machine() -> str:
    """Return the boot of this machine and its namespace of process numbers."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def _state_and_start(pid: int) -> tuple[str, int]:
    """Return the letter of a process's state and its start in clock ticks, or ("X", -1)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return "X", -1
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


class Row(NamedTuple):
    """The content of a heartbeat.

    Args:
        beats: how many heartbeats the rank has sent.
        place: the optimizer steps that are done, the phase, which is "" between two jobs, and a
            number that grows as the rank moves on.
        line: the line of Python that the main thread is at.
        works: whether the rank may take its time: its process uses the CPU, a debugger may halt its
            threads, or its job has made no step yet.
        left: whether the rank has left the job in order.
    """

    beats: int
    place: Any
    line: str
    works: bool
    left: bool

    @property
    def text(self) -> str:
        step, phase, _ = self.place
        return f"step {step}, {phase or 'outside of the trainer'}, {self.line}"


class _Job(NamedTuple):
    """The part of the program that is watched for standing still: see ``watched``."""

    position: Callable[[], Position]
    advice: Callable[[], str]
    log: Callable[[str], None]
    first_step: int


class Heartbeat:
    """The watch of one rank over the others.

    Args:
        rank, world_size: of this process.
        store: a connection to the store that all ranks share, which no other thread uses.
        timeout: seconds after which a job that stands still ends (``timeout_minutes``).
    """

    def __init__(self, rank: int, world_size: int, store: Any, timeout: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self.job: _Job | None = None
        self.processes: dict[int, Process] = {}
        self.rows: dict[int, Row] = {}

        self._store = store
        behind = [(rank + step) % world_size for step in range(1, world_size)]
        self._neighbours = behind[:_NEIGHBOURS]
        self._heard: dict[int, float] = {}  # when the newest row of a rank was seen first
        self._moved: dict[int, float] = {}  # when a rank was seen to move last
        self._found: dict[int, float] = {}  # since when a process is stopped or gone
        self._told: set[object] = set()
        self._answered = time.monotonic()  # when the store answered last
        self._store_is_gone = False
        self._must_end = False  # another rank has ended the job
        self._cpu = 0.0
        self._exchange = threading.Thread()
        self._has_left = threading.Event()
        self._ending = threading.Lock()  # who holds this lock ends the process

    def start(self) -> None:
        """Tell the others which process this is, learn which they are, and begin to watch.

        Collective: each rank waits for the others, since a store that stops tells nothing more.
        """
        self.processes[self.rank] = Process.own()
        self._store.set(f"heartbeat/process/{self.rank}", json.dumps(self.processes[self.rank]))
        self._note_own()
        self._send()
        self._store.set_timeout(timedelta(seconds=self.timeout))
        self._store.wait([f"heartbeat/row/{rank}" for rank in self._neighbours])
        self._store.set_timeout(timedelta(seconds=BEAT_SECONDS))
        self._read(self._neighbours)
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def leave(self, has_failed: bool = False) -> None:
        """End the watch in order: the others do not miss this rank.

        After an error the others are told to end. They ask the store who prints the first error,
        and the store goes with its process.
        """
        if has_failed:
            if _holds_store(self.rank):
                self._tell_the_end()
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
                if not self._exchange.is_alive():  # a store that is stopped never answers
                    self._exchange = self._ask_briefly(self._meet_others)
            self._judge(time.monotonic())

    def _begin_anew(self, now: float) -> None:
        """Forget since when the others are silent: this process was stopped itself."""
        self._found.clear()
        self._heard = dict.fromkeys(self._heard, now)
        self._moved = dict.fromkeys(self._moved, now)
        self._answered = now

    def _meet_others(self) -> None:
        """Send a heartbeat and read those of the others."""
        self._send()
        self._must_end = self._must_end or self._store.check(["heartbeat/end"])
        self._read(self._neighbours)
        self._answered = time.monotonic()

    def _note_own(self) -> None:
        job = self.job
        place: Position = (0, "", 0) if job is None else job.position()
        spent_before, self._cpu = self._cpu, time.process_time()
        share = (self._cpu - spent_before) / BEAT_SECONDS
        is_new = job is None or place[0] <= job.first_step
        works = share > _WORKING or is_new or "pydevd" in sys.modules

        before = self.rows.get(self.rank)
        beats = 1 if before is None else before.beats + 1
        row = Row(beats, list(place), _line_of_main_thread(), works, self._has_left.is_set())
        self._note(self.rank, row)

    def _send(self) -> None:
        self._store.set(f"heartbeat/row/{self.rank}", json.dumps(self.rows[self.rank]))

    def _read(self, ranks: Any) -> None:
        """Read the heartbeats of ranks. One question serves all ranks that have come."""
        for rank in ranks:
            if rank not in self.processes and self._store.check([f"heartbeat/row/{rank}"]):
                self.processes[rank] = Process(
                    *json.loads(self._store.get(f"heartbeat/process/{rank}"))
                )
        come = [rank for rank in ranks if rank in self.processes and rank != self.rank]
        texts = self._store.multi_get([f"heartbeat/row/{rank}" for rank in come]) if come else []
        for rank, text in zip(come, texts, strict=True):
            self._note(rank, Row(*json.loads(text)))

    def _note(self, rank: int, row: Row) -> None:
        now = time.monotonic()
        before = self.rows.get(rank)
        self.rows[rank] = row
        if before is None or before.beats != row.beats:
            self._heard[rank] = now
        if before is None or before.place != row.place:
            self._moved[rank] = now

    def _ask_briefly(self, work: Callable[[], object]) -> threading.Thread:
        """Ask the store in a thread, which is left behind if the store never answers."""

        def ask() -> None:
            try:
                work()
            except (RuntimeError, OSError) as error:
                # A machine with too much to do may answer the next question.
                self._store_is_gone = "timeout" not in str(error).lower()

        asking = threading.Thread(target=ask, daemon=True)
        if not self._store_is_gone:
            asking.start()
            asking.join(LOOK_SECONDS)
        return asking

    # -- the judgement ----------------------------------------------------------------------------

    def _judge(self, now: float) -> None:
        if self._must_end:
            self._end("", stacks=self._stands_still(now))
        for rank in list(self.processes):
            if rank != self.rank and not self.rows[rank].left:
                self._judge_process(rank, now)
                self._judge_silence(rank)
        self._judge_store(now)
        self._judge_stillness(now)

    def _judge_process(self, rank: int, now: float) -> None:
        """End the job if a process of this machine is stopped or gone."""
        state = self.processes[rank].state
        # In a user's own script a rank that is gone keeps nobody waiting.
        may_be_gone = self.job is None and not is_written()
        if state not in _PATIENCE or (state == "gone" and may_be_gone):
            self._found.pop(rank, None)
            return

        seconds, text = _PATIENCE[state]
        if now - self._found.setdefault(rank, now) >= seconds:
            self._end(f"{self._name(rank)} {text}")

    def _judge_silence(self, rank: int) -> None:
        """Tell that a rank sends no heartbeat. End the job if that lasts."""
        # Only answers of the store count: a store that is slow makes no rank silent.
        silent = self._answered - self._heard[rank]
        if silent < NAMED_SECONDS or self.processes[rank].state == "traced":
            self._told.discard(rank)
            return

        limit = self._limit(rank)
        text = (
            f"{self._name(rank)} has sent no heartbeat for {silent:.0f} s: {self.rows[rank].text}"
        )
        if silent >= limit:
            self._end(text)
        else:
            self._say(rank, f"{text}. The job ends after {limit:.0f} s")

    def _limit(self, rank: int) -> float:
        """Return the seconds for which a rank may be silent."""
        return self.timeout if self.rows[rank].place[1] == BUILDING else LONG_SECONDS

    def _judge_store(self, now: float) -> None:
        """End the job if the store does not answer, and this rank does not move either."""
        limit = NAMED_SECONDS if self._store_is_gone else self._limit(self.rank)
        seconds = now - max(self._answered, self._moved[self.rank])
        if self.job is not None and seconds >= limit:
            word = "is gone" if self._store_is_gone else "does not answer"
            self._end(f"the store that the ranks share {word}, for {seconds:.0f} s")

    def _judge_stillness(self, now: float) -> None:
        """Tell that no rank moves. End the job if that lasts, and no rank works."""
        if not self._stands_still(now):
            self._told.discard("still")
            return
        seconds = now - max(self._moved.values())
        text = f"no rank has moved for {seconds:.0f} s"
        works = any(row.works for row in self.rows.values())
        if works or seconds < self.timeout - 2 * BEAT_SECONDS:
            self._say("still", f"{text}, the job goes on: {self._table()}")
        else:
            self._end(f"{text} (timeout_minutes)", stacks=True)

    def _stands_still(self, now: float) -> bool:
        """Return whether all ranks that were read are in a job, and none has moved for long."""
        seconds = now - max(self._moved.values())
        is_long = seconds >= min(LONG_SECONDS, self.timeout / 2)
        return is_long and all(row.place[1] for row in self.rows.values())

    # -- messages and the end ---------------------------------------------------------------------

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
        return "; ".join(f"rank {', '.join(ranks)}: {text}" for text, ranks in places.items())

    @property
    def _speaks(self) -> bool:
        """Return whether this is the first rank of those that are known to live."""
        living = [
            rank
            for rank, heard in self._heard.items()
            if self.processes[rank].state in ("alive", "")
            and self._answered - heard < NAMED_SECONDS
        ]
        return self.rank <= min(living, default=self.rank)

    def _say(self, name: object, text: str) -> None:
        """Print a line once, on one rank."""
        if name not in self._told and self._speaks:
            print(f"rank {self.rank}: {text}", file=sys.stderr, flush=True)
            if self.job is not None:
                self.job.log(text)
        self._told.add(name)

    def _end(self, finding: str, *, stacks: bool = False) -> None:
        """End this process, and the job with it.

        Args:
            finding: why. It is "" if another rank has ended the job, and prints the reason.
            stacks: whether each rank prints the stacks of its threads.
        """
        if not self._ending.acquire(blocking=False):
            return  # the main thread ends this process
        owner = None
        if finding and not self._store_is_gone:
            owner = claim_first_error(self._store)
        is_first = self._speaks if owner is None else owner == str(self.rank)
        message = self._message(f"{finding}. The job ends.") if finding and is_first else ""

        def before() -> None:
            if message and self.job is not None:
                self.job.log(message)
            if stacks:
                faulthandler.dump_traceback(all_threads=True)
            self._kill_stopped()
            self._tell_the_end()

        end_at_once(message, before=before, code=0 if is_written() else 1)

    def _message(self, finding: str) -> str:
        advice = "" if self.job is None else self.job.advice()
        return f"{finding}\nIts ranks: {self._table()}\n{advice}"

    def _kill_stopped(self) -> None:
        """Kill the stopped ranks of this machine. They take no other signal."""
        for rank, process in self.processes.items():
            if process.state == "stopped":
                self._store_is_gone = self._store_is_gone or _holds_store(rank)
                with contextlib.suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)

    def _tell_the_end(self) -> None:
        """Tell the other ranks to end, and keep the store until they have read so."""
        self._ask_briefly(lambda: self._store.set("heartbeat/end", ""))
        if not self._store_is_gone:
            time.sleep(1.5 * BEAT_SECONDS)

    # -- the main thread --------------------------------------------------------------------------

    def explain(self) -> str:
        """Return which rank is gone, after a connection broke. "" if no rank is known to be."""
        self._ending.acquire()  # for good: the thread ends nothing any more
        for _ in range(15):
            for rank, process in list(self.processes.items()):
                if process.state == "gone" and not self.rows[rank].left:
                    return self._message(f"{self._name(rank)} {_GONE}")
            time.sleep(GONE_SECONDS / 15)
        return ""


def _holds_store(rank: int) -> bool:
    """Return whether the process of a rank holds the store. Otherwise the launcher does."""
    return rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"


def _line_of_main_thread() -> str:
    """Return file and line of the main thread: the innermost line that is not of a package."""
    innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    frame = innermost
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return "no Python"
    place = "/".join(Path(frame.f_code.co_filename).parts[-2:])
    return f"{place}:{frame.f_lineno} in {frame.f_code.co_name}"


_watch: Heartbeat | None = None


def start(timeout: timedelta) -> None:
    """Watch the ranks of this job from now on, if this process has others. Collective."""
    global _watch
    import torch.distributed as dist

    from ..private.torch import default_store

    if _watch is not None or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    # A connection of its own: the wait of another thread must not hold it up.
    store = default_store().clone()
    _watch = Heartbeat(dist.get_rank(), dist.get_world_size(), store, timeout.total_seconds())
    _watch.start()
    at_the_end(_watch.leave)
    atexit.register(_leave_in_order, _watch)


def _leave_in_order(watch: Heartbeat) -> None:
    """Leave at the end of a script that calls no ``run_and_exit``, unless it ends by an error."""
    if getattr(sys, "last_value", None) is None:
        watch.leave()
        if _holds_store(watch.rank):
            time.sleep(BEAT_SECONDS)  # the others read that this rank has left


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
    watch.job = _Job(position, advice, log, position()[0])
    try:
        yield
    except Exception as error:
        message = watch.explain() if is_lost_peer(error) else ""
        if message:
            raise LostRank(message) from error
        raise
    finally:
        watch.job = around
