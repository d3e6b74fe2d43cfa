"""This rank's row of the board: what its main thread does, and for how long it has not moved."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

from .board import Row
from .observation import Report, continue_observer, own_observer, report_of
from .observer import PERIOD_SECONDS
from .waits import collectives_begun, doing_in, frames_of


class OwnRow:
    """Makes the rows of this rank. Make it in the main thread, and call it from another one.

    Args:
        position: returns the optimizer step, the phase, and a number that grows as the rank moves.
        limit: seconds after which a rank counts as stopped or stuck; None: for ever.

    Attributes:
        moved: when the main thread last moved: a step, a phase, a collective that it began.
        failed: frames of the error that ends the block, the innermost first; [] for none.
        crash: the file for the stack of a crash; "" for none.
        left: why this rank is watched no more; "" while it is.
    """

    def __init__(
        self, position: Callable[[], tuple[int, str, int]], *, limit: float | None
    ) -> None:
        self.moved = time.monotonic()
        self.failed: list[FrameType] = []
        self.crash = ""
        self.left = ""

        self._position = position
        self._limit = limit
        self._main = threading.get_ident()
        self._native_main = threading.get_native_id()
        self._count = 0
        self._progress: tuple[int, ...] = ()
        self._outside = ""  # what the main thread last waited for outside of the job
        self._outside_seen = self.moved

    def note_moves(self, now: float) -> None:
        """Compare the position and the collectives begun with those of the last call."""
        _, _, moves = self._position()
        begun = [number for _, number in collectives_begun().values()]
        progress = (moves, *begun)
        if progress != self._progress:
            self._progress = progress
            self.moved = now

    def make(self) -> Row:
        """Return the row of this moment."""
        step, phase, _ = self._position()
        self._count += 1
        unmoved = time.monotonic() - self.moved

        report = None
        if unmoved >= 2 * PERIOD_SECONDS and self._limit is not None:
            report = self._report()

        doing = doing_in(self.failed or frames_of(self._main), self._native_main)
        return Row(
            count=self._count,
            step=step,
            phase=phase,
            unmoved=round(unmoved, 1),
            doing=doing.text,
            in_collective=doing.in_collective,
            outside=self._recent_outside(doing.outside),
            begun=collectives_begun(),
            report=report,
            crash=self.crash,
            left=self.left,
        )

    def _report(self) -> Report | None:
        """Ask the observer of this process; None where it does not answer, or has ended."""
        report = report_of(replace(own_observer(), host="localhost"))
        if report is None:
            continue_observer()
        elif report.gone:
            return None
        return report

    def _recent_outside(self, outside: str) -> str:
        """Return what the main thread waits for outside of the job, or did within the limit.

        So the time that it may be stuck is counted from the end of such a wait.
        """
        now = time.monotonic()
        if outside:
            self._outside = outside
            self._outside_seen = now
        if self._limit is not None and now - self._outside_seen < self._limit:
            return self._outside
        return ""
