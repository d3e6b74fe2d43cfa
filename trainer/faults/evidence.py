"""What is known of the ranks of a job: rows of the board, and answers of their observers."""

from __future__ import annotations

import time
from collections.abc import Mapping

from .board import Board
from .judge import Seen
from .observation import Report, report_of, reports_of
from .observer import PERIOD_SECONDS

# A rank that wrote nothing for so long is asked for at its observer.
_SILENT_SECONDS = 4 * PERIOD_SECONDS
# A rank that has not written yet has so many times as long: all of them start at once.
_UNKNOWN_PATIENCE = 3.0


class Evidence:
    """Puts together what a board and the observers of its ranks say.

    Args:
        board: is read by the caller.

    Attributes:
        began: since when this process has listened.
        answered: when observers last answered, by rank.
    """

    def __init__(self, board: Board, *, rank: int, world_size: int) -> None:
        self.board = board
        self.began = time.monotonic()
        self.answered: dict[int, float] = {}
        self._rank = rank
        self._ranks = range(world_size)

    def forget(self, now: float) -> None:
        """Listen anew: this process was away, and nobody was silent meanwhile."""
        self.began = now
        self.board.heard = dict.fromkeys(self.board.heard, now)

    def ended_rank(self) -> int | None:
        """Return a rank of this machine whose process ended inside of the block; None for none."""
        for rank, who in list(self.board.who.items()):
            row = self.board.rows.get(rank)
            has_left = row is not None and row.left != ""
            if rank != self._rank and who.identity.has_ended and not has_left:
                return rank
        return None

    def ask_observers(self) -> dict[int, Report | None]:
        """Return what is observed of each rank; None where nothing is.

        A rank that writes sends the report of its observer along; that of another rank is asked.
        """
        silent = []
        for rank in self._ranks:
            if self._is_absent(rank) or self._silent_seconds(rank) > _SILENT_SECONDS:
                silent.append(rank)
        who = self.board.who
        answers = reports_of({rank: who[rank].observer for rank in silent if rank in who})
        for rank, answer in answers.items():
            if answer is not None:
                self.answered[rank] = time.monotonic()

        reports = {}
        for rank in self._ranks:
            reports[rank] = answers.get(rank) if rank in silent else self.board.rows[rank].report
        return reports

    def gone_rank(self, reports: Mapping[int, Report | None]) -> int | None:
        """Return a rank that ended inside of the block, as observers report it; None for none."""
        for rank, report in reports.items():
            if report is None or not report.gone or self._is_absent(rank):
                continue
            if not self.board.who[rank].identity.is_alive:  # else its observer alone is gone
                return rank
        return None

    def seen(self, reports: Mapping[int, Report | None]) -> dict[int, Seen]:
        """Return what is known of each rank, for ``judge``."""
        return {rank: self._seen(rank, report) for rank, report in reports.items()}

    def has_vanished(self, rank: int, since: float) -> bool:
        """Return whether a rank has been silent for a while, and its observer has ended with it.

        Args:
            since: the time from which silence counts, as its connections broke.
        """
        now = time.monotonic()
        silent = now - max(since, self.board.heard.get(rank, since))
        if rank == self._rank or rank not in self.board.who or silent < 3 * PERIOD_SECONDS:
            return False
        report = report_of(self.board.who[rank].observer)
        return report is None or report.gone

    def _seen(self, rank: int, report: Report | None) -> Seen:
        row = self.board.rows.get(rank)
        is_observed = report is not None and not report.gone
        observed = report if report is not None and is_observed else Report()
        is_absent = self._is_absent(rank) and rank in self.board.who

        unmoved = self._silent_seconds(rank)
        begun = {}
        if row is not None:
            unmoved += row.unmoved
            begun = {group: number for group, (_, number) in row.begun.items()}

        return Seen(
            unmoved=unmoved,
            silent=self._unheard_seconds(rank),
            observed=is_observed,
            idle=observed.idle,
            stopped=observed.stopped,
            stopped_children=observed.stopped_children,
            traced=observed.traced,
            begun=begun,
            in_collective=row is not None and row.in_collective,
            outside="" if row is None else row.outside,
            is_absent=is_absent,
        )

    def _silent_seconds(self, rank: int) -> float:
        """Return the seconds since a rank last wrote, while this one listened."""
        if rank == self._rank:
            return 0.0
        heard = self.board.heard.get(rank, self.began)
        return time.monotonic() - max(heard, self.began)

    def _unheard_seconds(self, rank: int) -> float:
        """Return the seconds since a rank last wrote or its observer answered."""
        silent = self._silent_seconds(rank)
        if rank not in self.board.who:
            return silent / _UNKNOWN_PATIENCE
        answered = self.answered.get(rank, self.began)
        return min(silent, time.monotonic() - answered)

    def _is_absent(self, rank: int) -> bool:
        """Return whether a rank has not come into the block so far, or has left it."""
        row = self.board.rows.get(rank)
        return row is None or row.left != ""
