"""Votes beside the work: a fact that a single rank knows becomes known to all at a boundary.

A boundary is the end of a step, or of a batch in an evaluation. No step waits for a vote.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..errors import LaunchError

# Between two votes. A request waits for the next vote to begin, and is read at the vote after that.
_MICROSECONDS = 250_000


class Votes:
    """Requests to stop, which a rank may make alone, and a check that all ranks did the same.

    A vote begins at a boundary, and is read when the next vote begins. ``request`` is this rank's,
    0 for none. The largest of all ranks is the ``answer``.

    Between two votes are as many boundaries as the slowest rank passes in a quarter of a second.
    Their time travels with each vote, so all ranks know the same. The number at most doubles from
    vote to vote, for a fast beginning promises nothing, and falls at once.
    """

    def __init__(self, begin_max: Callable[..., Callable[[], list[int]]]) -> None:
        self.request = 0
        self.answer = 0
        self._begin_max = begin_max
        self._result: Callable[[], list[int]] | None = None
        self._name = ""  # of the boundaries that are passed now
        self._every = self._left = 1  # boundaries between two votes, and up to the next vote
        self._voted_at = time.monotonic()

    def pass_boundary(self, name: str, fingerprint: int) -> int:
        """Return the answer at a boundary. Those of a name take about the same time. Collective.

        Raises as ``check_same``, for the work since the vote before the last.
        """
        now = time.monotonic()
        if name != self._name:
            self._name, self._every, self._left, self._voted_at = name, 1, 1, now
        self._left -= 1
        if self._left == 0:
            microseconds = int((now - self._voted_at) / self._every * 1e6)
            self._voted_at = now
            self.finish()
            # The maximum of -fingerprint is the minimum: both are equal if all ranks are.
            self._result = self._begin_max(self.request, fingerprint, -fingerprint, microseconds)
            self._left = self._every
        return self.answer

    def finish(self) -> None:
        """Read the vote that is in flight. Raises as ``pass_boundary``."""
        result = self._result
        if result is None:
            return
        self._result = None
        request, largest, negative_smallest, microseconds = result()
        self.answer = max(self.answer, request)
        every = _MICROSECONDS // max(1, microseconds)
        self._every = max(1, min(2 * self._every, every))
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
