"""The watch over the ranks of a job: each rank sends a heartbeat to the store that all share.

A rank that dies breaks its connections, and the other ranks fail. A rank that is stopped, or waits
for an answer that never comes, breaks nothing. So a thread of each rank writes step, phase and line
of Python to the store every two seconds, and judges the other ranks, so that no two stopped ranks
go unseen. docs/faults.md has the table of what ends a job. A silent rank has a minute, for a call
in C may hold the interpreter's lock that long.

The watch holds the interpreter's lock for some 0.1 ms a second.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import psutil

from ..errors import TrainerError
from .exit import (
    at_the_end,
    briefly,
    claim_first_error,
    end_at_once,
    is_lost_peer,
    is_written,
    print_error,
    print_line,
)
from .signals import STANDARD_LIBRARY, frame_of_main_thread

ASK_SECONDS = 1.0  # for an answer of the store
BEAT_SECONDS = 2.0
GONE_SECONDS = 3.0  # the error of a rank that ends, or a broken connection, says more
NAMED_SECONDS = 10.0
LONG_SECONDS = 60.0  # of silence, or of standing still
# If this thread slept for longer, this process was stopped, and knows nothing of the others.
_ASLEEP_SECONDS = 5.0
# A process that uses more of its CPU between two heartbeats counts as working.
_WORKING_SECONDS = 0.4
# Each rank reads the heartbeats of so many other ranks: a single store serves all ranks of a job.
_NEIGHBOURS = 32
BUILDING = "set-up"
_GONE = (
    "is gone: killed, out of memory, or aborted in C++ (as if ranks use different parameters in "
    "one step without find_unused_parameters: true)"
)

_UNEQUAL = (
    "If ranks use different layers in a step, set find_unused_parameters: true. If they call the "
    "model unequally often (a short last step of ragged batches), set drop_last: true"
)

# How long a process of this machine may be stopped or gone, by the words of psutil. Somebody may
# continue a stopped process in a moment.
_PATIENCE = {"stopped": (8.0, "is stopped"), "zombie": (GONE_SECONDS, _GONE)}
_LIBRARIES = (STANDARD_LIBRARY, sys.prefix, "<")


class LostRank(TrainerError):
    """Another rank of the job is gone."""

    on_every_rank = False


class Row(NamedTuple):
    """The content of a heartbeat.

    Args:
        machine: the boot of the machine and the namespace of process numbers.
        sent: the time on a clock of the rank, which tells heartbeats apart.
        place: the steps that are done, the phase ("" between two jobs), and a number that grows.
        text: step, phase, and the line of Python that the main thread is at.
        limit: the seconds for which the rank may be silent.
        works: the process uses the CPU, has a debugger, or has made no step yet.
        left: whether the rank has left the job in order.
    """

    rank: int
    name: str
    machine: str
    pid: int
    sent: float
    place: Any
    text: str
    limit: float
    works: bool
    left: bool

    @property
    def state(self) -> str:
        """Return the word of psutil: ``zombie`` also if there is no process. "" if unknown."""
        if self.machine != _machine():
            return ""
        try:
            return psutil.Process(self.pid).status()
        except psutil.Error:
            return "zombie"


def _machine() -> str:
    """Return the boot of this machine and its namespace of process numbers."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    return f"{boot}{os.stat('/proc/self/ns/pid').st_ino}"


class _Job(NamedTuple):
    """The part of the program that is watched for standing still: see ``watched``."""

    position: Callable[[], tuple[int, str, int]]
    advice: Callable[[], str]
    first_step: int


# In a user's own script, before and after a training.
_NO_JOB = _Job(lambda: (0, "", 0), lambda: "", first_step=0)


@dataclass(eq=False)
class Heartbeat:
    """The watch of one rank over the others, by a connection of its own to the shared store.

    A job that stands still ends after ``timeout`` seconds (``timeout_minutes``).
    """

    rank: int
    world_size: int
    store: Any
    timeout: float
    job = _NO_JOB
    _answered = 0.0  # when the store answered last
    _store_is_gone = False
    _cpu = 0.0

    def __post_init__(self) -> None:
        # Otherwise the launcher holds the store.
        is_alone = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self.holds_store = self.rank == 0 and is_alone
        pid = os.getpid()
        name = f"rank {self.rank} (process {pid} on {socket.gethostname()})"
        self.process = (self.rank, name, _machine(), pid)
        self.rows: dict[int, Row] = {}

        others = [(self.rank + n) % self.world_size for n in range(1, self.world_size)]
        self._neighbours = others[:_NEIGHBOURS]
        self._seen: dict[object, tuple[object, float]] = {}  # values, and since when they are so
        self._silent: dict[int, int] = {}  # seconds from the last heartbeat to the last answer
        self._told: set[object] = set()
        self._exchange = threading.Thread()
        self._has_left = threading.Event()
        self._ending = threading.Lock()  # who holds this lock ends the process

    def start(self) -> None:
        """Begin to watch once all ranks have sent a heartbeat. Collective."""
        self._send()
        self._read(self._neighbours)
        self.store.set_timeout(timedelta(seconds=BEAT_SECONDS))
        threading.Thread(target=self._run, daemon=True).start()

    def leave(self, has_failed: bool = False) -> None:
        """End the watch in order. After an error tell the others, as the store goes with rank 0."""
        if has_failed:
            if self.holds_store:
                self._tell_the_end()
            return
        self._has_left.set()
        self._ask_briefly(self._send)

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        woke = 0.0
        while not self._has_left.wait(BEAT_SECONDS):
            now = time.monotonic()
            if now - woke > _ASLEEP_SECONDS:
                self._seen.clear()  # nobody is silent, and nothing stands still
            woke = now
            # A store that is stopped never answers.
            if not self._exchange.is_alive():
                self._exchange = self._ask_briefly(self._meet_others)
            self._judge()

    def _meet_others(self) -> None:
        """Send a heartbeat and read those of the others."""
        self._send()
        if self.store.check(["heartbeat/end"]):
            self._end("")
        self._read(self._neighbours)
        self._answered = time.monotonic()

    def _send(self) -> None:
        job = self.job
        step, phase, _ = place = job.position()
        spent = time.process_time() - self._cpu
        self._cpu += spent
        row = Row(
            *self.process,
            sent=time.monotonic(),
            place=place,
            text=f"step {step}, {phase or 'outside of the trainer'}, {_line_of_main_thread()}",
            limit=self.timeout if phase == BUILDING else LONG_SECONDS,
            works=step <= job.first_step or spent > _WORKING_SECONDS or "pydevd" in sys.modules,
            left=self._has_left.is_set(),
        )
        self.rows[self.rank] = row
        self.store.set(f"heartbeat/{self.rank}", json.dumps(row))

    def _read(self, ranks: Sequence[int]) -> None:
        """Read the heartbeats of ranks with a single question. Wait until all have sent theirs."""
        for text in self.store.multi_get([f"heartbeat/{rank}" for rank in ranks]):
            row = Row(*json.loads(text))
            self.rows[row.rank] = row
            self._silent[row.rank] = self._seconds(row.rank, row)

    def _ask_briefly(self, work: Callable[[], object]) -> threading.Thread:
        """Ask the store in a thread, which is left behind if the store never answers."""

        def ask() -> None:
            try:
                work()
            except RuntimeError as error:
                # A machine with too much to do may answer the next question.
                self._store_is_gone = "timeout" not in str(error).lower()

        return threading.Thread() if self._store_is_gone else briefly(ask, ASK_SECONDS)

    # -- the judgement ----------------------------------------------------------------------------

    def _seconds(self, name: object, value: object) -> int:
        """Return for how many seconds a name has had this value."""
        now = time.monotonic()
        before, since = self._seen.setdefault(name, (value, now))
        if value == before:
            return int(now - since)
        self._seen[name] = value, now
        return 0

    def _judge(self) -> None:
        for rank in self._neighbours:
            self._judge_rank(self.rows[rank])

        # Without a store, a rank goes on as long as it moves.
        limit = NAMED_SECONDS if self._store_is_gone else self.rows[self.rank].limit
        seconds = self._seconds("this rank", (self.job.position(), self._answered))
        if self.job is not _NO_JOB and seconds >= limit:
            word = "is gone" if self._store_is_gone else "does not answer"
            self._end(f"the store that the ranks share {word}, for {seconds} s")

        still = self._still()
        if not still:
            return
        text = f"no rank has moved for {still} s"
        works = any(row.works for row in self.rows.values())
        if works or still < self.timeout - 2 * BEAT_SECONDS:
            self._say(
                self._seen["places"][1], f"{text}, the job goes on: {self._table()}. {_UNEQUAL}"
            )
        else:
            self._end(f"{text} (timeout_minutes). {_UNEQUAL}")

    def _judge_rank(self, row: Row) -> None:
        """Tell that a rank is silent. End the job if that lasts, or the process is stopped."""
        if row.left:
            return
        state = row.state
        if state == "zombie" and self.job is _NO_JOB and not is_written():
            state = ""  # a rank that is gone keeps nobody waiting
        patience, text = _PATIENCE.get(state, (math.inf, ""))
        if self._seconds(row.name, state) >= patience:
            self._end(f"{row.name} {text}")

        silent = self._silent[row.rank]
        if silent < NAMED_SECONDS or state == "tracing-stop":  # by a debugger
            return
        text = f"{row.name} has sent no heartbeat for {silent} s: {row.text}"
        if silent >= row.limit:
            self._end(text)
        else:
            self._say(row.sent, f"{text}. The job ends after {row.limit:.0f} s")

    def _still(self) -> int:
        """Return for how many seconds no rank of a job has moved, once that is long. 0 before."""
        places = [self.job.position(), *(self.rows[rank].place for rank in self._neighbours)]
        seconds = self._seconds("places", places)
        if seconds < min(LONG_SECONDS, self.timeout / 2) or not all(place[1] for place in places):
            return 0
        return seconds

    # -- messages and the end ---------------------------------------------------------------------

    def _table(self) -> str:
        """Return the places of all ranks, in one line. Ranks at the same place stand together."""
        if self.world_size > len(self.rows):
            self._ask_briefly(lambda: self._read(range(self.world_size)))
        places: dict[str, list[str]] = {}
        for row in sorted(self.rows.values()):
            places.setdefault(row.text, []).append(str(row.rank))
        return "; ".join(f"rank {', '.join(ranks)}: {text}" for text, ranks in places.items())

    @property
    def _speaks(self) -> bool:
        """Return whether this is the first rank of those that seem to live."""
        return not any(
            self._silent[row.rank] < NAMED_SECONDS and row.state not in _PATIENCE
            for row in self.rows.values()
            if row.rank < self.rank
        )

    def _say(self, name: object, text: str) -> None:
        """Print a line once, on one rank."""
        if name not in self._told and self._speaks:
            print_line(text)
        self._told.add(name)

    def _end(self, finding: str) -> None:
        """End this process, and the job with it. No finding: another rank prints the reason."""
        if not self._ending.acquire(blocking=False):
            return  # the main thread ends this process
        is_first = finding and claim_first_error(self.store)
        if is_first or (is_first is None and self._speaks):
            print_error(self._message(f"{finding}. The job ends."))
        if self._still():
            faulthandler.dump_traceback()
        for row in self.rows.values():
            if row.state == "stopped":
                with suppress(OSError):
                    os.kill(row.pid, signal.SIGKILL)  # a stopped process takes no other signal
        self._tell_the_end()
        end_at_once()

    def _message(self, finding: str) -> str:
        return f"{finding}\nThe ranks: {self._table()}\n{self.job.advice()}"

    def _tell_the_end(self) -> None:
        """Tell the other ranks to end, and keep the store until they have read so."""
        self._ask_briefly(lambda: self.store.set("heartbeat/end", ""))
        if not self._store_is_gone:
            time.sleep(GONE_SECONDS)

    # -- the main thread --------------------------------------------------------------------------

    def explain(self, error: Exception) -> None:
        """Raise ``LostRank`` if a rank is gone, after a connection broke."""
        self._ending.acquire()  # for good: the thread ends nothing any more
        time.sleep(GONE_SECONDS)
        for row in self.rows.values():
            if row.state == "zombie":  # also a rank that left in order, which is too early
                raise LostRank(self._message(f"{row.name} {_GONE}")) from error


def _line_of_main_thread() -> str:
    """Return file and line of the main thread: the innermost line that is not of a package."""
    innermost = frame_of_main_thread()
    frame: FrameType | None = innermost
    while frame and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    frame = frame or innermost
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"


_watch: Heartbeat | None = None


def start(timeout: timedelta) -> None:
    """Watch the ranks of this job from now on, if this process has others. Collective."""
    global _watch
    import torch.distributed as dist

    from ..private.torch import default_store

    if _watch or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    if dist.get_backend() == "fake":  # the other ranks of a rehearsal
        return
    _watch = Heartbeat(
        dist.get_rank(),
        dist.get_world_size(),
        # A connection of the watch's own, which no wait of another thread holds up.
        default_store().clone(),
        timeout.total_seconds(),
    )
    _watch.start()
    at_the_end(_watch.leave)
    atexit.register(_leave_in_order, _watch)


def _leave_in_order(watch: Heartbeat) -> None:
    """Leave at the end of a script that calls no ``run_and_exit``, unless by an error."""
    if not hasattr(sys, "last_value"):
        watch.leave()
        if watch.holds_store:
            time.sleep(BEAT_SECONDS)  # the others read that this rank has left


def watched_building() -> AbstractContextManager[None]:
    """Watch a block that builds a job, which has nothing to resume from."""
    return watched(lambda: (0, BUILDING, 0), advice=lambda: "Start it again.")


@contextmanager
def watched(
    position: Callable[[], tuple[int, str, int]],
    *,
    advice: Callable[[], str],
) -> Iterator[None]:
    """Watch that the ranks move on in a block that all enter.

    Raises ``LostRank`` if the block fails because another rank is gone.

    Args:
        position: returns the optimizer step, the phase, and a number that grows, to any thread.
        advice: returns how to go on after the end of the job.
    """
    watch = _watch
    if not watch:
        yield
        return

    around = watch.job
    watch.job = _Job(position, advice, position()[0])
    try:
        yield
    except Exception as error:
        if is_lost_peer(error):
            watch.explain(error)
        raise
    finally:
        watch.job = around
