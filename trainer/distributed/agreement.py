"""Agreement between ranks: decisions are made once and known to all at the same step.

The channel is a separate gloo group on the CPU, so no decision waits for the device. A fact that a
single rank knows becomes known to all by votes beside the work: a vote begins at a boundary (the
end of a step, or of a batch in an evaluation), and is read when the next vote begins.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ..errors import LaunchError, TrainerError
from ..private.torch import process_groups, set_timeout
from .signals import signals_watched
from .started_by import launcher_line

# A request to stop, as a number of which the largest is the answer of all ranks. Its low byte is
# the signal that asked, 0 if the code asked.
STOP = 1 << 8
# Between two votes. A request waits for the next vote to begin, and is read at the vote after that.
_MICROSECONDS = 250_000


class Agreement:
    """Stop requests from any rank, and work of the main process alone.

    Collective: make an agreement, and call each method, on every rank, unless the docstring says
    that a rank may call a method alone. Without a timeout ranks wait for torch's default.
    """

    _request = 0  # of this rank. The largest of all ranks is the answer
    _answer = 0
    _vote: Callable[[], list[int]] | None = None  # that is in flight
    _boundary = ""  # the kind of boundary that is passed now
    _every = _left = 1  # boundaries between two votes, and up to the next vote
    _seconds = 0.0  # from a boundary to the next

    def __init__(self, timeout: timedelta | None = None) -> None:
        is_connected = dist.is_initialized()
        self.rank = dist.get_rank() if is_connected else 0
        self.world_size = dist.get_world_size() if is_connected else 1
        # In `trainer rehearse` the other ranks are fakes, whose answers would be arbitrary bytes.
        # This rank's answers stand for theirs.
        self.distributed = self.world_size > 1 and dist.get_backend() != "fake"

        self.timeout = timeout
        self.group: Any = None
        if self.distributed:
            self.group = dist.new_group(backend="gloo", timeout=timeout, group_desc="agreement")
        self._in_flight: set[Any] = set()
        self._launcher = os.getppid() if launcher_line() else None
        self._voted_at = time.monotonic()

    # -- stopping ---------------------------------------------------------------------------------

    def stop(self, number: int = 0, *, agreed: bool = False) -> None:
        """Request a stop. A rank may call this alone: all stop half a second or two steps later.

        ``number`` is that of a signal, 0 if the code asks. If all ranks ask at this very step
        (``agreed``), the next step is the last.
        """
        if agreed:  # no vote is needed
            self._answer = max(self._answer, STOP)
        else:
            self._request = max(self._request, STOP | number)

    def poll(self, fingerprint: int = 0) -> int | None:
        """Return the signal of an agreed stop, 0 if the code asked, None to go on. Collective."""
        answer = self.pass_boundary("step", fingerprint)
        return answer & 0xFF if answer else None

    def poll_evaluation(self) -> int:
        """Return the signal of an agreed stop after a batch. 0 to go on. Collective."""
        return self.pass_boundary("batch", 0) & 0xFF

    def pass_boundary(self, name: str, fingerprint: int) -> int:
        """Return the answer at a boundary. Those of a name take about the same time. Collective.

        Between two votes are as many boundaries as the slowest rank passes in a quarter of a
        second. Their time travels with each vote, so all ranks know the same. The number at most
        doubles from vote to vote, for a fast beginning promises nothing, and falls at once.

        Raises as ``check_same``, for the work since the vote before the last.
        """
        # Another process is the parent of a process whose launcher was killed.
        if self._launcher and self._launcher != os.getppid() and not self._request:
            self.stop(signal.SIGTERM)  # nobody would end this process any more

        now = time.monotonic()
        if name != self._boundary:
            self._boundary, self._every, self._left, self._voted_at = name, 1, 1, now
        self._left -= 1
        if self._left == 0:
            self._seconds = (now - self._voted_at) / self._every
            self._voted_at = now
            self._read_vote()
            # The maximum of -fingerprint is the minimum: both are equal if all ranks are.
            self._vote = self.begin_max(
                self._request, fingerprint, -fingerprint, int(self._seconds * 1e6)
            )
            self._left = self._every
        return self._answer

    def _read_vote(self) -> None:
        """Read the vote that is in flight. Raises as ``check_same``."""
        vote, self._vote = self._vote, None
        if vote:
            request, largest, negative_smallest, microseconds = vote()
            self._answer = max(self._answer, request)
            self._every = max(1, min(2 * self._every, _MICROSECONDS // max(1, microseconds)))
            _check_same([largest, -negative_smallest])

    def listening(self) -> AbstractContextManager[None]:
        """Turn SIGTERM and the first SIGINT into an agreed stop: see ``signals.py``."""

        def ask(number: int) -> None:
            if self._request and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.stop(number)

        def allowed_seconds() -> float:
            # To evaluate and to save after an agreed stop, and for a long step.
            return math.inf if self._answer else 2 * self._seconds

        self._voted_at = time.monotonic()
        return signals_watched(ask, allowed_seconds, waits_in=__file__)

    # -- numbers and objects of all ranks ---------------------------------------------------------

    def check_same(self, fingerprint: int) -> None:
        """Compare a fingerprint with the others' now. Collective. Raises ``LaunchError``."""
        _check_same(self.gather(fingerprint))

    def settle(self) -> None:
        """Wait for all work in flight. A rank may call this alone, since all began the same."""
        for work in self._in_flight:
            work.wait()

    def begin_sums(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Begin to sum numbers over ranks. Return a function that waits. Collective."""
        return self._begin(torch.tensor(values, dtype=torch.float64), "SUM")

    def begin_max(self, *numbers: int) -> Callable[[], list[int]]:
        """Begin to find the largest of each number. Return a function that waits. Collective."""
        return self._begin(torch.tensor(numbers), "MAX")

    def _begin(self, values: torch.Tensor, name: str) -> Callable[[], Any]:
        work: Any = None
        if self.distributed:
            work = dist.all_reduce(
                values, getattr(dist.ReduceOp, name), group=self.group, async_op=True
            )
            self._in_flight.add(work)

        def result() -> Any:
            if work:
                work.wait()
                self._in_flight.discard(work)
            return values.tolist()

        return result

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order. Collective: call on every rank."""
        if not self.distributed:
            return [value] * self.world_size
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def of_main(self, value: Any) -> Any:
        """Return the value of the main process. Collective: call on every rank."""
        values = [value]
        if self.distributed:
            dist.broadcast_object_list(values, src=0, group=self.group)
        return values[0]

    def run_on_main(self, work: Callable[[], object]) -> None:
        """Do ``work`` on the main process. All wait, and raise the same error. Collective."""
        failure = None
        if self.rank == 0:
            try:
                work()
            except (TrainerError, OSError) as caught:
                failure = caught

        error = self.of_main(failure)
        if error:
            raise error

    # -- groups -----------------------------------------------------------------------------------

    def limit_waits(self) -> None:
        """Give the time-out to every process group, also to those that an engine made."""
        if self.distributed and self.timeout:
            for group in process_groups():
                set_timeout(self.timeout, group)

    def close(self) -> None:
        """Finish the vote in flight, and wait for all ranks on the CPU. Collective."""
        self._read_vote()
        if self.distributed:
            dist.barrier(self.group)


def _check_same(fingerprints: list[int]) -> None:
    """Raise ``LaunchError`` if ranks got the gradients of different parameters."""
    if len(set(fingerprints)) > 1:
        raise LaunchError(
            "ranks used different parameters in one of the last steps, or the same ones in another "
            "order (compiled code), and gradients were added to those of others; set "
            "find_unused_parameters: true, and resume from the newest checkpoint, which is from "
            "before"
        )
