"""The watch over the ranks of a job, as each rank keeps it: a thread, and what it does in a turn.

A rank that dies takes its connections with it, and the others fail with errors of their own, or
wait. One that is stopped, or waits for a worker that never answers, closes nothing: the others wait
for it until the time-out, half an hour by default.

Twice a second the thread of a rank does this (``_Watch.run``), in this order:

1. If this process itself was stopped meanwhile, it begins anew: it knows of nobody.
2. It notes whether the main thread has moved.
3. It asks the store, in a thread of its own, since a store that is stopped never answers
   (``_Watch.look``): it writes this rank's row, ends this process where another rank has ended the
   job, and reads who the others are and what they wrote.
4. If the process of a rank of this machine has ended, it ends the job.
5. On two ranks, of which one may be at fault itself, it judges who holds up the job (``judge.py``),
   and ends the job where a rank does.
6. Where the store has not answered for too long, it judges who holds that, and ends the job.

To end the job is to print the message, to tell the others through the store, to kill what is
stopped, and to leave (``_Watch.end``).

It costs the main thread nothing but the interpreter's lock, for some 0.1 ms twice a second. The
main thread takes part only where the block fails because a connection broke: it waits for two
seconds to learn which rank is gone.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType

from ..distributed.exit import after_error, claim_first_error, end_at_once, is_lost_peer
from ..errors import TrainerError
from .board import Board, Who, rank_of_store
from .crash import Crashes, CrashFile
from .evidence import Evidence
from .identity import Identity
from .judge import Fault, Finding, judge
from .observation import Report, ask, own_observer, report_of
from .observer import PERIOD_SECONDS
from .own_row import OwnRow
from .report import GONE, report_text

# A rank whose connections broke waits so long to learn which one is gone.
_FOUND_SECONDS = 2.0
# Where this process slept for longer between two turns, it was stopped.
_LONGEST_SLEEP_SECONDS = 4 * PERIOD_SECONDS
# So many looks follow each other soon: a rank may end in its first step, and its row is wanted.
_FIRST_LOOKS = 10
# Ranks that judge. One of them may be what stands still.
_JUDGES = 2
# The uses of the watch in this process, which all ranks make in the same order.
_numbers = itertools.count(1)


class LostRank(TrainerError):
    """Another rank of the job is gone."""

    on_every_rank = False


@dataclass(kw_only=True)
class Watchdog:
    """Watches the ranks in a block that all enter: ``with Watchdog(...):``.

    One process has nobody to watch.

    Args:
        rank, world_size: of this process.
        position: returns the optimizer step, the phase, and a number that grows as the rank moves.
            It is called from another thread.
        hang_seconds: how long a rank may be stopped or stuck; None: for ever.
        gpu: whether the ranks compute on one.
        advice: returns how to resume, for the end of the message.
        log: writes the message to the run's log.

    Raises:
        LostRank: at the end of the block, where it fails because another rank is gone.
    """

    rank: int
    world_size: int
    position: Callable[[], tuple[int, str, int]]
    hang_seconds: float | None
    gpu: bool
    advice: Callable[[], str]
    log: Callable[[str], None]
    _watch: _Watch | None = field(default=None, init=False, repr=False)

    @property
    def limit(self) -> float | None:
        """Return the seconds after which a rank counts as stopped or stuck; None: never.

        They are fewer than ``hang_seconds``: the message is to be there by then, and a fault is
        seen some periods after it came.
        """
        if self.hang_seconds is None:
            return None
        return max(self.hang_seconds - 4 * PERIOD_SECONDS, 2 * PERIOD_SECONDS)

    def __enter__(self) -> None:
        name = str(next(_numbers))
        if self.world_size == 1:
            return
        board = Board(
            name, rank=self.rank, world_size=self.world_size, answer_seconds=_FOUND_SECONDS
        )
        self._watch = _Watch(self, board)
        self._watch.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._watch is None:
            return
        message = self._watch.leave(error)
        if message:
            raise LostRank(message) from error


class _Others(Enum):
    """What other ranks have said of the end of the job."""

    SILENT = "nothing"
    CLAIMED = "one of them prints the first error"
    ENDED = "one of them has ended the job"


class _Watch:
    """The watch of one rank over the others, in one block."""

    def __init__(self, settings: Watchdog, board: Board) -> None:
        self.settings = settings
        self.rank = settings.rank
        self.ranks = range(settings.world_size)
        self.limit = settings.limit
        self.board = board
        self.evidence = Evidence(board, rank=self.rank, world_size=settings.world_size)
        self.own = OwnRow(settings.position, limit=self.limit)

        self.has_store = True  # False once its process has ended
        self.others = _Others.SILENT
        self._looks = 0
        self._named: set[int] = set()  # ranks that the message names
        self._crashes = Crashes()
        self._block_ended = threading.Event()
        self._ending = threading.Lock()  # who holds it ends this process, or leaves the block

    # -- the main thread --------------------------------------------------------------------------

    def start(self) -> None:
        self._crash_file = CrashFile()
        self.own.crash = self._crash_file.path
        self._who = Who(host=socket.gethostname(), identity=Identity.own(), observer=own_observer())
        self._ask_briefly(self._write)
        self._ask_briefly(self._meet_holder)
        self._thread = threading.Thread(target=self.run, name="watchdog", daemon=True)
        self._thread.start()

    def leave(self, error: BaseException | None) -> str:
        """End the watch at the end of the block, and tell the others.

        Args:
            error: by which the block fails; None for none.

        Returns:
            The message where a rank that is gone is the reason; else "".
        """
        message = ""
        if error is not None and is_lost_peer(error):
            self._ending.acquire()  # for good: the thread ends nothing any more
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            self.own.failed = frames[::-1]
            message = self._name_lost_rank()
        elif error is not None and self.rank == rank_of_store():
            after_error(self._end_others_with_the_store)

        self._block_ended.set()
        self._thread.join(timeout=_FOUND_SECONDS)
        self.own.left = "finished" if error is None else f"left with {type(error).__name__}"
        self._ask_briefly(self._write)
        self._crash_file.close()
        return message

    def _name_lost_rank(self) -> str:
        """Return the message for a broken connection; "" where another rank prints one.

        It is also "" where nobody is gone. The thread asks the store meanwhile, which may not
        answer.
        """
        begin = time.monotonic()
        ended: int | None = None
        looks = 0
        while time.monotonic() < begin + _FOUND_SECONDS:
            if self.others is _Others.CLAIMED:
                return ""
            if self.others is _Others.ENDED:
                end_at_once("", before=lambda: None)

            # A rank that has ended may have said why: the thread reads its row once more.
            now_ended = self.evidence.ended_rank()
            if now_ended != ended:
                ended = now_ended
                looks = self._looks
            has_read_again = self._looks > looks + 1 or not self.has_store

            # A rank that ended at once may have no row here.
            for rank in sorted(self.board.who):
                row = self.board.rows.get(rank)
                if row is not None and row.left not in ("", "finished"):
                    return self._text({rank: row.left})
                if rank == ended and has_read_again:
                    return self._text({rank: GONE})
                if self.evidence.has_vanished(rank, since=begin):
                    return self._text({rank: GONE})
            time.sleep(PERIOD_SECONDS / 10)
        return ""

    # -- the thread -------------------------------------------------------------------------------

    def run(self) -> None:
        """Watch until the block ends."""
        woke = time.monotonic()
        asked = woke
        looking: threading.Thread | None = None
        while not self._block_ended.wait(self._period()):
            now = time.monotonic()
            if now - woke > _LONGEST_SLEEP_SECONDS:
                self._begin_anew(now)
                asked = now
            woke = now
            self.own.note_moves(now)

            if looking is None or not looking.is_alive():
                asked = now
                # A thread of its own: where the store is cut off or stopped no answer comes, and no
                # time-out ends it.
                looking = threading.Thread(target=self._ask, args=(self.look,), daemon=True)
                looking.start()
                looking.join(PERIOD_SECONDS)
            elif self.limit is not None:
                unanswered = now - asked
                unmoved = now - self.own.moved
                self.judge_store(min(unanswered, unmoved), self.limit)

    def _period(self) -> float:
        """Return the seconds until the next turn: a tenth where this rank waits to know something.

        That is which rank is gone, who the others are, or at first what they do.
        """
        is_new = self._looks < _FIRST_LOOKS
        is_in_haste = bool(self.own.failed) or is_new or len(self.board.who) < len(self.ranks)
        return PERIOD_SECONDS / 10 if is_in_haste else PERIOD_SECONDS

    def _begin_anew(self, now: float) -> None:
        """Forget what was known: this process was stopped, or a call of C kept Python's lock."""
        self.own.moved = now
        self.evidence.forget(now)

    def look(self) -> None:
        """Write this rank's row, read what the others wrote, and judge."""
        if self.has_store:
            self._write()
            self._read()
        self._looks += 1

        ended = self.evidence.ended_rank()
        if ended is not None:
            self._ask(self._read_all)  # it may have written why before it ended
            if self.evidence.ended_rank() == ended and not self._has_another_claimed():
                self.end(self._text({ended: GONE}))
        elif self.limit is not None and self.rank < _JUDGES:
            self.judge_ranks(self.limit)

    def judge_ranks(self, limit: float) -> None:
        """End the job where a rank holds it up. Nothing is read while this rank moves."""
        if time.monotonic() - self.own.moved < limit / 2:
            return
        self._ask(self._read_all)
        reports = self.evidence.ask_observers()
        gone = self.evidence.gone_rank(reports)
        if gone is not None:
            self.end(self._text({gone: GONE}))
            return

        findings = judge(self.evidence.seen(reports), limit, gpu=self.settings.gpu)
        if findings:
            self.end(self._text_of(findings))

    def judge_store(self, waited: float, limit: float) -> None:
        """End the job where the store has not answered for too long.

        Args:
            waited: seconds for which the store has not answered, and this rank has not moved.
        """
        if waited < limit / 2:
            return
        holder = rank_of_store()
        if holder is None or holder == self.rank:
            if waited >= limit:
                self._end_without_store({self.rank: Finding(Fault.CUT_OFF)}, None)
            return

        who = self.board.who.get(holder)
        report = None if who is None else report_of(who.observer)
        observed = report or Report()
        is_stopped = observed.stopped >= limit
        if waited >= limit and who is not None and who.identity.is_stopped:
            is_stopped = True

        if is_stopped:
            self._end_without_store({holder: Finding(Fault.STORE_STOPPED)}, who)
        elif waited < limit or observed.stopped or observed.traced:
            return
        elif who is None or who.identity.is_here:
            self._end_without_store({holder: Finding(Fault.STORE_SILENT)}, who)
        else:
            self._end_without_store({self.rank: Finding(Fault.CUT_OFF)}, who)

    def _end_without_store(self, findings: Mapping[int, Finding], holder: Who | None) -> None:
        """End the job where the store does not answer; the first rank to do so prints why.

        The first is who first asks the observer of the rank that holds the store.
        """
        self.has_store = False
        answer = None if holder is None else ask(holder.observer, "claim")
        is_first = answer is None or answer.get("first", True)
        self.end(self._text_of(findings) if is_first else "")

    # -- the store --------------------------------------------------------------------------------

    def _ask(self, work: Callable[[], object]) -> None:
        """Do work that asks the store, as long as there is one.

        After its end torch would print a stack for each question.
        """
        if not self.has_store:
            return
        try:
            work()
        except RuntimeError as error:
            # A machine with too much to do may answer the next question.
            if "timeout" not in str(error).lower():
                self.has_store = False
        except (OSError, ValueError):
            return

    def _ask_briefly(self, work: Callable[[], object]) -> None:
        """Do work that asks the store from the main thread, which must not wait for ever."""
        asking = threading.Thread(target=self._ask, args=(work,), daemon=True)
        asking.start()
        asking.join(timeout=_FOUND_SECONDS)

    def _write(self) -> None:
        """Write the row of this rank."""
        if not self.board.is_connected:
            self.board.introduce(self._who)
        self.board.write(self.own.make())

    def _read(self) -> None:
        """Read what the others have written, and end this process where one has ended the job."""
        if self.board.has_verdict():
            self.others = _Others.ENDED
            self.end("")
        self.board.read_who()
        if not self.own.failed:
            self.board.read_now_and_then()
            return

        self._read_all()
        if self.others is not _Others.ENDED and self._has_another_claimed():
            self.others = _Others.CLAIMED

    def _read_all(self) -> None:
        self.board.read(self.ranks)

    def _has_another_claimed(self, *, take: bool = False) -> bool:
        """Return whether another rank prints the first error.

        Args:
            take: claim it for this rank where nobody has.
        """
        if not self.has_store or not self.board.is_connected:
            return False
        owner = claim_first_error(self.board.shared, take=take)
        return owner not in (None, "", str(self.rank))

    def _meet_holder(self) -> None:
        """Learn who holds the store while it answers: once it is stopped, nobody can tell."""
        holder = rank_of_store()
        if holder is not None and self.board.is_connected:
            self.board.meet(holder)

    # -- the end ----------------------------------------------------------------------------------

    def _text_of(self, findings: Mapping[int, Finding]) -> str:
        """Return the message of what was found."""
        hang_seconds = self.settings.hang_seconds or 0.0
        return self._text({rank: found.text(hang_seconds) for rank, found in findings.items()})

    def _text(self, verdict: Mapping[int, str]) -> str:
        """Return the message: what happened to which ranks, what all were doing, how to resume."""
        rows = dict(self.board.rows)
        who = dict(self.board.who)
        self._named = set(verdict)
        for rank in verdict.keys() & rows.keys() & who.keys():
            # While a process lives the file is its own.
            if who[rank].identity.has_ended:
                self._crashes.read(rank, rows[rank])
        advice = self.settings.advice()
        return report_text(verdict, rows, who, crashes=self._crashes.text(), advice=advice)

    def end(self, message: str) -> None:
        """End this process, from the thread: the main one may wait for ever.

        It returns where the main thread has begun to do so.

        Args:
            message: to print; "" where another rank prints why.
        """
        if not self._ending.acquire(blocking=False):
            return
        if message and self._has_another_claimed(take=True):
            message = ""
        if message:
            with contextlib.suppress(TrainerError):  # a full disk must not keep the job
                self.settings.log(message)
        end_at_once(message, before=self._end_others)

    def _end_others(self) -> None:
        """Tell the others to end, and kill what is stopped: it takes no signal of its launcher."""
        if not self.has_store:
            # The others learn that a message is printed from the observer of the rank that holds
            # the store, which ends with that rank. They come to the same finding within a second
            # or so.
            time.sleep(_FOUND_SECONDS)
        self._crash_file.delete()

        self._ask(self.board.set_verdict)
        for rank, who in list(self.board.who.items()):
            if rank == self.rank or rank in self._named:
                ask(who.observer, "kill")  # it does not stop itself, what it started may be stopped
            who.identity.kill_if_stopped()

        self._keep_store_for_others()

    def _end_others_with_the_store(self) -> None:
        """Tell the others to end, after the error of this rank was printed.

        Elsewhere they ask the store who prints the first error, as soon as their connections to
        this rank break; but the store goes with this process.
        """
        self._ask_briefly(self.board.set_verdict)
        self._keep_store_for_others()

    def _keep_store_for_others(self) -> None:
        """Wait until the others have read the verdict, where the store goes with this process."""
        if self.has_store and self.rank == rank_of_store():
            time.sleep(4 * PERIOD_SECONDS)
