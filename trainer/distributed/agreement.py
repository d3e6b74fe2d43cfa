"""Agreement between ranks: decisions are made once and known to all at the same step.

The channel is a gloo group of its own on the CPU, so it never waits for the device.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from ..errors import LaunchError, TrainerError
from .launcher import is_alive, launcher_processes

STOP = 1 << 8  # somebody asked to stop; the low bits carry the signal that asked
_PATIENCE_SECONDS = 10.0  # in one call of C, after a signal; torchrun and DeepSpeed kill after 30
_ECHO_SECONDS = 5.0  # a scheduler's SIGTERM comes twice: to each process, and handed on by the launcher
_LIBRARY = os.path.dirname(os.__file__)


class Agreement:
    """Stop requests from any rank, and what only the main process does. Collective: call each method on every rank.

    Args:
        timeout: how long a rank waits for another one; None: torch's default.

    Raises:
        LaunchError: ranks cannot reach one another.
    """

    def __init__(self, timeout: timedelta | None = None) -> None:
        self.distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.timeout = timeout
        self.group: Any = _gloo_group(timeout) if self.distributed else None
        self.rank = dist.get_rank() if self.distributed else 0
        self.world_size = dist.get_world_size() if self.distributed else 1
        self._stop_request = self._due = 0
        self._agreed = self._stopping = False
        self._polled, self._step_seconds = time.monotonic(), 0.0
        self._pending: tuple[Any, torch.Tensor] | None = None
        self._in_flight: list[Any] = []
        self._launchers, self._looked = launcher_processes(), time.monotonic()

    def stop(self, number: int = 0, *, agreed: bool = False) -> None:
        """Ask for a stop: any rank may ask alone, and all stop at the end of the step after the next.

        Args:
            agreed: every rank asks at this very step, by numbers that are the same on all: the next step is the last.
        """
        self._stop_request = max(self._stop_request, STOP | number)
        self._agreed |= agreed

    def poll(self, fingerprint: int = 0) -> int | None:
        """Return, at a step boundary, the signal of an agreed stop (0 where the code asked for it), None to go on.

        The answer is that of the previous step, so the exchange overlaps with a whole step and costs no wait. One
        process waits as long, so that it stops at the same step as several.

        Args:
            fingerprint: of what this rank did, which must be the same on all.

        Raises:
            LaunchError: in the step before, ranks got the gradients of different parameters.
        """
        self._notice_orphaned()
        now = time.monotonic()
        self._polled, self._step_seconds = now, now - self._polled
        answer = self._agreed_stop(fingerprint)
        self._stopping = answer is not None
        return answer

    def _agreed_stop(self, fingerprint: int) -> int | None:
        if self._agreed:
            return self._stop_request & 0xFF
        if not self.distributed:
            due, self._due = self._due, self._stop_request
            return due & 0xFF if due else None
        agreed = self._collect()
        flags = torch.tensor([self._stop_request, fingerprint, -fingerprint])
        self._pending = self.all_reduce_max(flags), flags
        return agreed & 0xFF if agreed else None

    def _collect(self) -> int:
        if self._pending is None:
            return 0
        work, flags = self._pending
        work.wait()
        self._pending = None
        asked, most, least = flags.tolist()
        if most != -least:
            raise LaunchError(
                "ranks used different parameters in the step before, and gradients were added to those of others; set "
                "find_unused_parameters: true, and resume from a checkpoint of an earlier step"
            )
        return int(asked)

    def all_reduce_max(self, number: torch.Tensor) -> Any:
        """Begin to take the maximum over ranks, in place; the work to wait for. Only where there are several."""
        work = dist.all_reduce(number, dist.ReduceOp.MAX, group=self.group, async_op=True)
        self._in_flight = [begun for begun in self._in_flight if not begun.is_completed()] + [work]
        return work

    def settle(self) -> None:
        """Wait for what is in flight. One rank may call it alone, since all began the same."""
        for work in self._in_flight:
            work.wait()

    def sum(self, value: float) -> float:
        """Sum one number over ranks, on the CPU. Collective: call on every rank."""
        return self.begin_sum(value)()

    def begin_sum(self, value: float) -> Callable[[], float]:
        """Begin to sum one number over ranks; what is returned waits for it. Collective: call on every rank."""
        total = torch.tensor([value], dtype=torch.float64)
        work = dist.all_reduce(total, group=self.group, async_op=True) if self.distributed else None

        def result() -> float:
            if work is not None:
                work.wait()
            return float(total.item())

        return result

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order. Collective: call on every rank."""
        if not self.distributed:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def run_on_main(self, work: Callable[[], object]) -> None:
        """Do ``work`` on the main process; all wait for it, and its error is everybody's error."""
        failure: list[Any] = [None]
        if not self.distributed or dist.get_rank() == 0:
            try:
                work()
            except (TrainerError, OSError) as error:
                if not self.distributed:
                    raise
                failure = [error]
        if self.distributed:
            dist.broadcast_object_list(failure, src=0, group=self.group)
            if failure[0] is not None:
                raise failure[0]

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Turn SIGTERM and the first SIGINT into an agreed stop; afterwards the signals are what they were.

        A second SIGTERM ends the process at once, and so does the first where the main thread is stuck (``_watch``).
        Python takes signals in its main thread only: in another one nothing is changed.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if self._stop_request and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.stop(number)

        previous = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
        self._polled = time.monotonic()
        source, sink = os.pipe()
        os.set_blocking(sink, False)
        _sinks.append(sink)
        woken = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
        watcher = threading.Thread(target=self._watch, args=(source,), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in previous.items():
                signal.signal(number, handler)
            _sinks.remove(sink)
            os.close(sink)
            watcher.join()
            os.close(source)

    def _watch(self, source: int) -> None:
        """End this process where a signal came and its main thread stays in one call of C, as for a rank that is gone.

        Python's handlers run between calls of the main thread only: one that waits in a collective or for its GPU
        never takes the signal. A step that takes longer by itself has twice the time of the one before. What waits for
        other ranks here, or in Python's own library (a thread, a process, a file), comes back by itself; and a stop
        that is agreed on has all the time it needs to evaluate and to save.

        Args:
            source: where each signal's number arrives as a byte; closed where nobody listens any more.
        """
        asked, first, since, beats = 0, 0.0, 0.0, -1
        while True:
            ready = select.select([source], [], [], 0.25 if asked else None)[0]
            now = time.monotonic()
            if ready:
                byte = os.read(source, 1)
                if not byte:
                    return
                if byte[0] == signal.SIGTERM and asked and now - first > _ECHO_SECONDS:
                    os._exit(128 + signal.SIGTERM)
                if not asked and byte[0] in (signal.SIGTERM, signal.SIGINT):
                    asked, first = byte[0], now
            if not asked:
                continue
            if beats != _beats:
                beats, since = _beats, now
                ctypes.pythonapi.Py_AddPendingCall(_BEAT, None)
            elif self._stopping or _comes_back(threading.main_thread()):
                since = now
            elif now - since > max(_PATIENCE_SECONDS, 2 * self._step_seconds):
                os._exit(128 + asked)

    def _notice_orphaned(self) -> None:
        """Stop as by SIGTERM where the launcher is gone (killed): nobody would end this process any more."""
        if time.monotonic() - self._looked < 1.0:
            return
        self._looked = time.monotonic()
        if not self._stop_request and not all(map(is_alive, self._launchers)):
            self.stop(signal.SIGTERM)

    def limit_waits(self) -> None:
        """Give the time-out to every group: engines make some of their own, with torch's 10 minutes for NCCL."""
        if self.distributed and self.timeout is not None:
            for group in list(dist.distributed_c10d._world.pg_map):
                dist.distributed_c10d._set_pg_timeout(self.timeout, group)

    def close(self) -> None:
        """Finish what is in flight, and wait for all ranks: one may be at an upload, for which NCCL should not wait."""
        self._collect()
        if self.distributed:
            dist.barrier(self.group)


def _gloo_group(timeout: timedelta | None) -> Any:
    try:
        return dist.new_group(backend="gloo", timeout=timeout)
    except (RuntimeError, OSError) as error:
        said = str(error).strip().partition("\n")[0]
        raise LaunchError(
            f"ranks cannot reach one another over gloo ({said}); where a machine's name leads to another network, set "
            "GLOO_SOCKET_IFNAME to the interface that the machines share (ip addr lists them)"
        ) from error


_sinks: list[int] = []  # where the signals of this process are written


def _part_from_parent() -> None:
    """Keep the signals of a forked process (a worker that loads data) from being taken for its parent's."""
    if _sinks:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_part_from_parent)


def _count(_: object) -> int:
    global _beats
    _beats += 1
    return 0


# Python calls it in its main thread as soon as that is between two of its instructions. (It must not be collected.)
_BEAT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_count)
_beats = 0


def _comes_back(thread: threading.Thread) -> bool:
    """Tell whether a thread waits in Python's own library, or for other ranks in this module."""
    frame = sys._current_frames().get(thread.ident or 0)
    file = frame.f_code.co_filename if frame else _LIBRARY
    if file.startswith(_LIBRARY) and "site-packages" not in file:
        return True
    while frame is not None and frame.f_code.co_filename != __file__:
        frame = frame.f_back
    return frame is not None


class AsyncMax:
    """The largest of all ranks' numbers, asked at one step boundary and known at the next: nobody waits in between."""

    def __init__(self, agreement: Agreement) -> None:
        self._agreement = agreement
        self._pending: tuple[Any, torch.Tensor] | None = None

    def start(self, number: int) -> None:
        """Begin to compare this rank's number with the others'; the result before it was read."""
        assert self._pending is None, "one at a time"
        value = torch.tensor([number])
        self._pending = self._agreement.all_reduce_max(value) if self._agreement.distributed else None, value

    def result(self) -> int | None:
        """Return the largest number; None where none was given."""
        if self._pending is None:
            return None
        work, value = self._pending
        if work is not None:
            work.wait()
        self._pending = None
        return int(value.item())
