"""Votes beside the work: what one rank alone knows becomes known to all at one boundary, and no
step waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import LaunchError

# between two votes; a request waits for the next one to begin, and then for the one after to be
# read
_SECONDS = 0.25


class AsyncMax:
    """The largest of all ranks' numbers, asked at one boundary and known at a later one: nobody
    waits in between.

    Args:
        all_reduce_max: begins to take the maximum over ranks, in place; returns the work to wait
            for, None for one process.
    """

    def __init__(self, all_reduce_max: Callable[[Tensor], Any]) -> None:
        self._all_reduce_max = all_reduce_max
        self._pending: tuple[Any, Tensor] | None = None

    def start(self, *numbers: int) -> None:
        """Begin to compare this rank's numbers with the others'; the result before them was read."""
        assert self._pending is None, "one at a time"
        values = torch.tensor(numbers)
        self._pending = self._all_reduce_max(values), values

    def result(self) -> list[int] | None:
        """Return the largest numbers; None where none were given."""
        if self._pending is None:
            return None
        work, values = self._pending
        if work is not None:
            work.wait()
        self._pending = None
        return values.tolist()


class Pace:
    """How many boundaries lie between two votes: those of a quarter of a second on the slowest
    rank.

    The time that boundaries took travels with each vote, so all ranks know the same. From one vote
    to the next the number at most doubles, for a fast beginning promises nothing, and it falls at
    once: where steps suddenly take longer, a request is late once, by so many of them.
    """

    def __init__(self) -> None:
        self.every = self._span = self._left = 1
        self._since = time.monotonic()

    def is_due(self) -> bool:
        """Count a boundary; tell whether there is a vote at it."""
        self._left -= 1
        return self._left == 0

    def microseconds(self) -> int:
        """Return the time of a boundary since the last vote, whatever it went into, and begin to
        measure anew.
        """
        now = time.monotonic()
        spent, self._since = now - self._since, now
        return int(spent / self._span * 1e6)

    def follow(self, microseconds: int) -> None:
        """Take over what the slowest rank needed for a boundary."""
        self.every = max(1, min(2 * self.every, int(_SECONDS * 1e6) // max(1, microseconds)))

    def go_on(self) -> None:
        """Begin to count up to the next vote."""
        self._span = self._left = self.every


class Votes:
    """Requests to stop, which any rank may make alone, and a comparison of what must be the same on
    all ranks.

    All ranks pass the same boundaries in the same order: ends of steps, and of batches in an
    evaluation. A vote begins at one of them and is read at the next that has one.

    Args:
        all_reduce_max: as for ``AsyncMax``.

    Attributes:
        request: this rank's, 0 for none; the largest of all ranks is the answer.
    """

    def __init__(self, all_reduce_max: Callable[[Tensor], Any]) -> None:
        self.request = self.answer = 0
        self._largest = AsyncMax(all_reduce_max)
        self._paces: dict[str, Pace] = {}
        self._voted = Pace()  # the pace of the vote that is not read yet

    def pass_boundary(self, name: str, fingerprint: int) -> int:
        """Return the largest request that all ranks know of, 0 for none.

        Args:
            name: of a sequence of boundaries that take about the same time.
            fingerprint: of what this rank did, which must be the same on all.

        Raises:
            LaunchError: since the vote before the last, ranks got the gradients of different
                parameters.
        """
        pace = self._paces.get(name) or self._paces.setdefault(name, Pace())
        if pace.is_due():
            self.finish()
            self._largest.start(self.request, fingerprint, -fingerprint, pace.microseconds())
            self._voted = pace
            pace.go_on()
        return self.answer

    def finish(self) -> None:
        """Read the vote that is in flight. Raises as ``pass_boundary``."""
        if (result := self._largest.result()) is None:
            return
        asked, most, least, microseconds = result
        self.answer = max(self.answer, asked)
        self._voted.follow(microseconds)
        check_same([most, -least])


def check_same(fingerprints: list[int]) -> None:
    """Raise ``LaunchError`` where ranks got the gradients of different parameters."""
    if len(set(fingerprints)) > 1:
        raise LaunchError(
            "ranks used different parameters in one of the last steps, and gradients were added to those of others; "
            "set find_unused_parameters: true, and resume from the newest checkpoint, which is from before"
        )
