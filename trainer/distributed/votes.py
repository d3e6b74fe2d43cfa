"""Votes beside the work: a fact that a single rank knows becomes known to all at a boundary.

A boundary is the end of a step, or of a batch in an evaluation. No step waits for a vote.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable

from ..errors import LaunchError

# Between two votes. A request waits for the next vote to begin, and is read at the vote after that.
_MICROSECONDS = 250_000


class Pace:
    """The number of boundaries between two votes: a quarter of a second on the slowest rank.

    The time of boundaries travels with each vote, so all ranks know the same. The number at most
    doubles from vote to vote, for a fast beginning promises nothing, and falls at once.
    """

    def __init__(self) -> None:
        self.every = 1
        self.left = 1  # boundaries up to the next vote
        self._measured_at = time.monotonic()

    def measure(self) -> int:
        """Return the microseconds that a boundary took since the last vote. Measure from now on."""
        seconds = time.monotonic() - self._measured_at
        self._measured_at += seconds
        return int(seconds / self.every * 1e6)

    def follow(self, microseconds: int) -> None:
        """Adapt to the time that a boundary took on the slowest rank."""
        every = _MICROSECONDS // max(1, microseconds)
        self.every = max(1, min(2 * self.every, every))


class Votes:
    """Requests to stop, which a rank may make alone, and a check that all ranks did the same.

    A vote begins at a boundary, and is read when the next vote begins. ``request`` is this rank's,
    0 for none. The largest of all ranks is the ``answer``.
    """

    def __init__(self, begin_max: Callable[..., Callable[[], list[int]]]) -> None:
        self.request = 0
        self.answer = 0
        self._begin_max = begin_max
        self._result: Callable[[], list[int]] | None = None
        self._paces: defaultdict[str, Pace] = defaultdict(Pace)
        self._voted = Pace()  # the pace of the vote that is not read yet

    def pass_boundary(self, name: str, fingerprint: int) -> int:
        """Return the answer at a boundary. Those of a name take about the same time. Collective.

        Raises as ``check_same``, for the work since the vote before the last.
        """
        pace = self._paces[name]
        pace.left -= 1
        if pace.left == 0:
            microseconds = pace.measure()
            self.finish()
            # The maximum of -fingerprint is the minimum: both are equal if all ranks are.
            self._result = self._begin_max(self.request, fingerprint, -fingerprint, microseconds)
            self._voted = pace
            pace.left = pace.every
        return self.answer

    def finish(self) -> None:
        """Read the vote that is in flight. Raises as ``pass_boundary``."""
        result = self._result
        if result is None:
            return
        self._result = None
        request, largest, negative_smallest, microseconds = result()
        self.answer = max(self.answer, request)
        self._voted.follow(microseconds)
        check_same([largest, -negative_smallest])


def check_same(fingerprints: list[int]) -> None:
    """Raise ``LaunchError`` if ranks got the gradients of different parameters."""
    if len(set(fingerprints)) > 1:
        raise LaunchError(
            "ranks used different parameters in one of the last steps, or the same ones in another "
            "order (compiled code), and gradients were added to those of others; set "
            "find_unused_parameters: true, and resume from the newest checkpoint, which is from "
            "before"
        )
