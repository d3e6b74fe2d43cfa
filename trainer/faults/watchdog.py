"""A watch over the ranks of a job: one that is gone, stopped or stuck is named, and then the job
ends.

A rank that dies takes its connections with it, and the others fail with errors of their own, or
wait. One that is stopped, or waits for a worker that never answers, closes nothing: the others wait
for it until the time-out, half an hour by default. So a thread of each rank writes twice a second
what the rank does to the store that all share, a small process beside each rank sees whether it
works (``observer.py``), and two ranks judge (``judge.py``).

It costs the main thread nothing but the interpreter's lock, for some 0.1 ms twice a second.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType

from ..distributed.exit import claim_first_error, end_at_once, is_lost_peer
from ..errors import TrainerError
from .board import Board, Row, Who, rank_of_store
from .identity import Identity
from .judge import CUT_OFF, STORE_SILENT, STORE_STOPPED, Seen, judge
from .observation import Report, ask, continue_observer, own_observer, report_of, reports_of
from .observer import PERIOD_SECONDS, WATCH_THREAD
from .report import GONE, crash_of, report_text
from .waits import collectives_begun, doing_in, frames_of

_FOUND_SECONDS = 2.0  # a rank whose connections broke waits so long to learn which one is gone
_SILENT_SECONDS = (
    4 * PERIOD_SECONDS
)  # a rank that wrote nothing for so long is asked for at its observer
_UNKNOWN_PATIENCE = (
    3.0  # times as long has a rank that has not written yet: all of them start at once
)
_JUDGES = 2  # of which one may be what stands still
_serial = 0


class LostRank(TrainerError):
    """Another rank of the job is gone."""

    on_every_rank = False


class Watchdog:
    """Watches the ranks in a block that all enter: ``with Watchdog(...):``. One process has nobody
    to watch.

    Args:
        rank, world_size: of this process.
        position: returns the optimizer step, the phase, and a number that grows as the rank goes
            on. It is called from another thread.
        hang_seconds: how long a rank may be stopped or stuck; None: for ever.
        gpu: whether the ranks compute on one.
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
        gpu: bool,
        advice: Callable[[], str],
        log: Callable[[str], None],
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._position, self._advice, self._log = position, advice, log
        self._hang_seconds, self._gpu = hang_seconds, gpu
        # The message is to stand by then, and a fault is seen some periods after it came.
        self._limit = (
            None
            if hang_seconds is None
            else max(hang_seconds - 4 * PERIOD_SECONDS, 2 * PERIOD_SECONDS)
        )
        self._ended = threading.Event()
        self._telling = threading.Lock()
        self._began = time.monotonic()
        self._moves: tuple[int, ...] = ()
        self._moved = self._began
        self._count = self._looks = 0
        self._left = ""
        self._failed: list[FrameType] = []  # of the error that ends the block, the innermost first
        self._is_claimed = self._is_told = False
        self._board: Board | None = None
        self._has_store = False
        self._outside = "", self._began
        self._named: set[int] = set()
        self._answered: dict[int, float] = {}  # when observers did
        self._crash = ""  # the file to which the stack goes where C++ ends this process
        self._crashes: dict[int, str] = {}
        self._reading = threading.Lock()

    def __enter__(self) -> Watchdog:
        global _serial
        _serial += 1
        if self.world_size > 1:
            self._start(f"{_serial}")
        return self

    def _write(self, board: Board) -> None:
        if not board.is_connected:
            board.introduce(self._who)
        board.write(self._row())

    def _start(self, name: str) -> None:
        self._main, self._native_main = threading.get_ident(), threading.get_native_id()
        if not faulthandler.is_enabled():
            # Read by another rank, so that it stands where a user reads first, and not above all
            # else.
            descriptor, self._crash = tempfile.mkstemp(prefix="samecurve-crash-")
            self._crash_file = os.fdopen(descriptor, "w")
            faulthandler.enable(self._crash_file)
        board = self._board = Board(
            name, rank=self.rank, world_size=self.world_size, answer_seconds=_FOUND_SECONDS
        )
        self._has_store = True
        self._who = Who(host=socket.gethostname(), identity=Identity.own(), observer=own_observer())
        self._ask_briefly(lambda: self._write(board))
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        board = self._board
        if board is None:
            return
        message = ""
        if error is not None and is_lost_peer(error):
            # for good: the thread tells nothing any more, or ends this process
            self._telling.acquire()
            self._failed = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
            message = self._name_lost(board)
        self._ended.set()
        self._thread.join(timeout=_FOUND_SECONDS)
        self._left = "finished" if error is None else f"left with {type(error).__name__}"
        self._ask_briefly(lambda: self._write(board))
        if self._crash:
            faulthandler.disable()
            self._crash_file.close()
            Path(self._crash).unlink(missing_ok=True)
        if message:
            raise LostRank(message) from error

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        _name_thread()
        woke = asked = time.monotonic()
        looking: threading.Thread | None = None
        while not self._ended.wait(PERIOD_SECONDS / 10 if self._is_in_haste() else PERIOD_SECONDS):
            now = time.monotonic()
            if now - woke > 4 * PERIOD_SECONDS:
                self._forget(now)
                asked = now
            woke = now
            self._note_moves(now)
            if looking is None or not looking.is_alive():
                asked = now
                # A thread of its own: where the store is cut off or stopped no answer comes, and no
                # time-out ends it.
                looking = threading.Thread(target=self._ask, args=(self._look,), daemon=True)
                looking.start()
                looking.join(PERIOD_SECONDS)
            elif self._limit is not None:
                self._judge_without_store(now - asked, self._limit)

    def _is_in_haste(self) -> bool:
        """Tell whether this rank wants to know more than in half a second: who is gone, or who the
        others are.
        """
        return self._failed != [] or self._board is None or len(self._board.who) < self.world_size

    def _forget(self, now: float) -> None:
        """Begin to watch anew: this process was stopped, or a call of C kept Python's lock, and it
        knows of nobody.
        """
        self._began = self._moved = now
        if self._board is not None:
            self._board.heard = dict.fromkeys(self._board.heard, now)

    def _note_moves(self, now: float) -> None:
        moves = (self._position()[2], *(count for _, count in collectives_begun().values()))
        if moves != self._moves:
            self._moves, self._moved = moves, now

    def _ask(self, work: Callable[[], object]) -> None:
        """Do what asks the store, as long as there is one; torch prints a stack for each question
        after its end.
        """
        if not self._has_store:
            return
        try:
            work()
        except RuntimeError as error:
            if (
                "timeout" not in str(error).lower()
            ):  # a machine with too much to do answers the next one
                self._has_store = False
        except (OSError, ValueError):
            return

    def _ask_briefly(self, work: Callable[[], object]) -> None:
        """Do what asks the store from the main thread, which must not wait for ever where that is
        stopped.
        """
        asking = threading.Thread(target=self._ask, args=(work,), daemon=True)
        asking.start()
        asking.join(timeout=_FOUND_SECONDS)

    def _look(self) -> None:
        board = self._board
        assert board is not None
        if self._has_store:
            self._write(board)
            if board.has_verdict():
                self._is_told = True
                self._end("")
            board.read_who()
            if self._failed:
                board.read(range(self.world_size))
                self._is_claimed = self._others_tell()
            else:
                board.read_now_and_then()
        self._looks += 1
        gone = self._gone(board)
        if gone is not None:
            self._ask(
                lambda: board.read(range(self.world_size))
            )  # it may have said something meanwhile
            if gone == self._gone(board) and not self._others_tell():
                self._end(self._report({gone: GONE}))
        elif self._limit is not None and self.rank < _JUDGES:
            self._judge(board, self._limit)

    def _others_tell(self, *, take: bool = False) -> bool:
        """Tell whether another rank tells what happened."""
        if self._board is None or not (self._has_store and self._board.is_connected):
            return False
        owner = claim_first_error(self._board.shared, take=take)
        return owner not in (None, "", str(self.rank))

    def _gone(self, board: Board) -> int | None:
        """Return the rank of a process of this machine that ended inside of the block, as far as is
        known.
        """
        for rank, who in list(board.who.items()):
            row = board.rows.get(rank)
            if rank != self.rank and who.identity.has_ended and not (row and row.left):
                return rank
        return None

    def _row(self) -> Row:
        step, phase, _ = self._position()
        self._count += 1
        unmoved = time.monotonic() - self._moved
        report: Report | None = None
        if unmoved >= 2 * PERIOD_SECONDS and self._limit is not None:
            report = report_of(replace(own_observer(), host="localhost"))
            if report is None:
                continue_observer()
        doing = doing_in(self._failed or frames_of(self._main), self._native_main)
        return Row(
            count=self._count,
            step=step,
            phase=phase,
            unmoved=round(unmoved, 1),
            doing=doing.text,
            in_collective=doing.in_collective,
            outside=self._outside_of_late(doing.outside),
            begun=collectives_begun(),
            report=None if report is None or report.gone else report,
            crash=self._crash,
            left=self._left,
        )

    def _outside_of_late(self, outside: str) -> str:
        """Return what the main thread waits for outside of the job, or did within the limit: no
        clock begins before.
        """
        now = time.monotonic()
        if outside:
            self._outside = outside, now
        text, seen = self._outside
        return text if self._limit is not None and now - seen < self._limit else ""

    # -- who holds up the job ---------------------------------------------------------------------

    def _judge(self, board: Board, limit: float) -> None:
        """End the job where a rank holds it up. Nothing is read while this rank goes on."""
        now = time.monotonic()
        if now - self._moved < limit / 2:
            return
        self._ask(lambda: board.read(range(self.world_size)))
        silent = {rank: self._silent(board, rank, now) for rank in range(self.world_size)}
        absent = {
            rank
            for rank in silent
            if self._is_absent(board, rank) or silent[rank] > _SILENT_SECONDS
        }
        asked = reports_of({rank: board.who[rank].observer for rank in absent if rank in board.who})
        self._answered |= {
            rank: time.monotonic() for rank, report in asked.items() if report is not None
        }

        seen = {}
        for rank in silent:
            report = asked.get(rank) if rank in absent else board.rows[rank].report
            if report is not None and report.gone:
                if not self._is_absent(board, rank) and not board.who[rank].identity.is_alive:
                    return self._end(self._report({rank: GONE}))
                report = None  # its observer alone is gone
            seen[rank] = self._seen(board, rank, report)
        verdict = judge(seen, limit, gpu=self._gpu)
        if verdict:
            self._end(self._report(self._timed(verdict)))

    def _silent(self, board: Board, rank: int, now: float) -> float:
        """Return the seconds since a rank was last heard of, while this one listened."""
        if rank == self.rank:
            return 0.0
        return now - max(board.heard.get(rank, self._began), self._began)

    def _unheard(self, board: Board, rank: int) -> float:
        """Return the seconds since a rank or its observer was last heard of."""
        now = time.monotonic()
        silent = self._silent(board, rank, now)
        if rank not in board.who:
            return silent / _UNKNOWN_PATIENCE
        return min(silent, now - self._answered.get(rank, self._began))

    def _is_absent(self, board: Board, rank: int) -> bool:
        """Tell whether a rank has not come into the block so far, or has left it."""
        row = board.rows.get(rank)
        return row is None or bool(row.left)

    def _seen(self, board: Board, rank: int, report: Report | None) -> Seen:
        row = board.rows.get(rank)
        silent = self._silent(board, rank, time.monotonic())
        known = report or Report()
        begun = {} if row is None else {group: count for group, (_, count) in row.begun.items()}
        return Seen(
            unmoved=silent + (row.unmoved if row else 0.0),
            silent=self._unheard(board, rank),
            observed=report is not None,
            idle=known.idle,
            stopped=known.stopped,
            stopped_children=known.stopped_children,
            traced=known.traced,
            begun=begun,
            in_collective=row is not None and row.in_collective,
            outside=row.outside if row else "",
            is_away=self._is_absent(board, rank) and rank in board.who,
        )

    def _judge_without_store(self, unanswered: float, limit: float) -> None:
        """End the job where the store has not answered for too long, and this rank has not moved
        meanwhile.
        """
        board = self._board
        assert board is not None
        waited = min(unanswered, time.monotonic() - self._moved)
        if waited < limit / 2:
            return
        holder = rank_of_store()
        if holder is None or holder == self.rank:
            if waited >= limit:
                self._end_without_store({self.rank: CUT_OFF}, None)
            return

        who = board.who.get(holder)
        report = None if who is None else report_of(who.observer)
        seen = report or Report()
        is_stopped = seen.stopped >= limit or (
            waited >= limit and who is not None and who.identity.is_stopped
        )
        if is_stopped:
            self._end_without_store({holder: STORE_STOPPED}, who)
        elif waited < limit or seen.stopped or seen.traced:
            return
        elif who is None or who.identity.is_here:
            self._end_without_store({holder: STORE_SILENT}, who)
        else:
            self._end_without_store({self.rank: CUT_OFF}, who)

    def _end_without_store(self, verdict: Mapping[int, str], holder: Who | None) -> None:
        """Tell it once: whoever first asks the observer of the rank that holds the store."""
        self._has_store = False
        answer = ask(holder.observer, "claim") if holder is not None else None
        is_first = answer is None or answer.get("first", True)
        self._end(self._report(self._timed(verdict)) if is_first else "")

    # -- the message ------------------------------------------------------------------------------

    def _name_lost(self, board: Board) -> str:
        """Return the message for a broken connection; "" where another rank tells what happened, or
        nobody is gone.

        The thread asks the store meanwhile: it may not answer.
        """
        begin = time.monotonic()
        dead: int | None = None
        looks = 0
        while time.monotonic() < begin + _FOUND_SECONDS and not self._is_claimed:
            if self._is_told:
                end_at_once("", before=lambda: None)
            gone = self._gone(board)
            if gone != dead:
                dead, looks = gone, self._looks
            # A rank that is gone may have said why: it is asked for once more.
            has_asked = self._looks > looks + 1 or not self._has_store
            for rank, row in sorted(list(board.rows.items())):
                if row.left not in ("", "finished"):
                    return self._report({rank: row.left})
                if rank == gone and has_asked:
                    return self._report({rank: GONE})
                if self._is_silent_and_gone(board, rank, begin):
                    return self._report({rank: GONE})
            time.sleep(PERIOD_SECONDS / 10)
        return ""

    def _is_silent_and_gone(self, board: Board, rank: int, begin: float) -> bool:
        """Tell whether a rank has been silent since its connections broke, and its observer has
        ended with it.
        """
        silent = time.monotonic() - max(begin, board.heard.get(rank, begin))
        if rank == self.rank or rank not in board.who or silent < 3 * PERIOD_SECONDS:
            return False
        report = report_of(board.who[rank].observer)
        return report is None or report.gone

    def _timed(self, verdict: Mapping[int, str]) -> dict[int, str]:
        def since(text: str) -> str:
            whose = (
                "it has done nothing"
                if text.startswith(("is stopped", "does not"))
                else "nothing in the job went on"
            )
            return f"{text}: {whose} for {self._hang_seconds:g} s (hang_seconds)"

        return {rank: since(text) for rank, text in verdict.items()}

    def _report(self, verdict: Mapping[int, str]) -> str:
        """Say what happened to which ranks, what every rank was doing, and how to go on."""
        board = self._board
        assert board is not None
        self._named = set(verdict)
        rows, who = dict(board.rows), dict(board.who)
        with self._reading:  # two threads may write a report, of which one is told
            for rank in verdict.keys() & rows.keys() & who.keys() - self._crashes.keys():
                if who[rank].identity.has_ended:  # while it lives the file is its own
                    self._crashes[rank] = crash_of(rows[rank])
        crashes = "\n".join(filter(None, self._crashes.values()))
        return report_text(verdict, rows, who, crashes=crashes, advice=self._advice())

    def _end(self, message: str) -> None:
        """End this process, from the thread: the main one may wait for ever. "": another rank has
        told why.
        """
        if not self._telling.acquire(blocking=False):
            return  # the main thread tells it
        if message and self._others_tell(take=True):
            message = ""
        if message:
            with contextlib.suppress(TrainerError):  # a full disk must not keep the job
                self._log(message)
        end_at_once(message, before=self._end_others)

    def _end_others(self) -> None:
        """Have the others end; what is stopped takes no signal, and its launcher would wait for it."""
        if not self._has_store:
            # That it is told the others learn from the observer of the rank that holds the store,
            # which ends with that rank. They come to the same verdict within a second or so.
            time.sleep(_FOUND_SECONDS)
        if self._crash:
            Path(self._crash).unlink(missing_ok=True)
        board = self._board
        assert board is not None
        self._ask(board.set_verdict)
        for rank, who in list(board.who.items()):
            if rank == self.rank or rank in self._named:
                ask(who.observer, "kill")  # itself does not stop, what it started may
            who.identity.kill_if_stopped()
        if self._has_store and self.rank == rank_of_store():
            time.sleep(
                4 * PERIOD_SECONDS
            )  # the verdict goes with this process: others read it first


def _name_thread() -> None:
    """Name this thread, and those that it starts from now on, as threads of the watch."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(WATCH_THREAD)
