"""SIGTERM and Ctrl-C as requests to stop, and the end of a process that cannot take them.

Python runs the handler of a signal between two instructions of the main thread. A main thread that
waits in C, in a collective or for its GPU, for a rank that is gone never comes to the next one. So
Python also writes the number of each signal into a pipe, the handler writes an answer behind it,
and a thread reads both. It ends the process

- ten seconds after a signal that the main thread has not answered, unless it waits for something
  that comes back.
- at a second SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

# In one call of C, after a signal. torchrun and DeepSpeed kill after 30.
_PATIENCE_SECONDS = 10.0
# A scheduler's SIGTERM comes twice: to each process, and once more from the launcher.
_ECHO_SECONDS = 5.0
_LOOK_SECONDS = 0.25
_ANSWER = b"\0"  # no signal has the number 0
_STANDARD_LIBRARY = os.path.dirname(os.__file__)

# The ends of pipes into which the signals of this process are written.
_sinks: set[int] = set()


@contextlib.contextmanager
def signals_watched(
    ask: Callable[[int], None], allowed_seconds: Callable[[], float], *, waits_in: str
) -> Iterator[None]:
    """Pass SIGTERM, SIGINT and SIGUSR1 to ``ask``. End the process where it cannot take them.

    Python takes signals in its main thread only: in another thread nothing is changed.

    Args:
        ask: is called with the signal's number, between two instructions of the main thread.
        allowed_seconds: how long the main thread may stay in one call of C, if that is more than
            ten seconds. Infinite where it has all the time it needs.
        waits_in: the file whose calls wait for other ranks, and come back by themselves.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    source, sink = os.pipe()
    os.set_blocking(sink, False)
    _sinks.add(sink)

    def handle(number: int, frame: FrameType | None) -> None:
        if sink in _sinks:
            os.write(sink, _ANSWER)
        ask(number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    previous_handlers = {number: signal.signal(number, handle) for number in numbers}
    previous_sink = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    reader = _Reader(source, allowed_seconds, waits_in)
    thread = threading.Thread(target=reader.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_sink)
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        _sinks.discard(sink)
        os.close(sink)
        thread.join()
        os.close(source)


class _Reader:
    """The thread that reads signals and their answers, and ends the process.

    Args:
        source: where each signal's number arrives as a byte, and each answer as a zero behind it.
            It ends where nobody listens any more.
        allowed_seconds, waits_in: as of ``signals_watched``.
    """

    def __init__(self, source: int, allowed_seconds: Callable[[], float], waits_in: str) -> None:
        self._source = source
        self._allowed_seconds = allowed_seconds
        self._waits_in = waits_in
        self._first_signal = 0
        self._first_time = 0.0
        self._unanswered_since: float | None = None

    def run(self) -> None:
        while True:
            timeout = None if self._unanswered_since is None else _LOOK_SECONDS
            ready, _, _ = select.select([self._source], [], [], timeout)
            if ready:
                byte = os.read(self._source, 1)
                if not byte:
                    return
                self._receive(byte)
            if self._is_stuck():
                os._exit(128 + self._first_signal)

    def _receive(self, byte: bytes) -> None:
        now = time.monotonic()
        number = byte[0]
        if byte == _ANSWER:
            self._unanswered_since = None
        if number not in (signal.SIGTERM, signal.SIGINT):
            return

        if not self._first_signal:
            self._first_signal = number
            self._first_time = now
        elif number == signal.SIGTERM and now - self._first_time > _ECHO_SECONDS:
            os._exit(128 + number)
        if self._unanswered_since is None:
            self._unanswered_since = now

    def _is_stuck(self) -> bool:
        """Return whether a signal has been unanswered for too long."""
        if self._unanswered_since is None:
            return False
        now = time.monotonic()
        if _comes_back(threading.main_thread(), self._waits_in):
            self._unanswered_since = now
        waited = now - self._unanswered_since
        return waited > max(_PATIENCE_SECONDS, self._allowed_seconds())


def _comes_back(thread: threading.Thread, waits_in: str) -> bool:
    """Return whether a thread is in Python's own library, or in a call of the file ``waits_in``.

    The library waits for a thread, a process or a file. The file for other ranks.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return True
    file = frame.f_code.co_filename
    if file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file:
        return True

    while frame is not None:
        if frame.f_code.co_filename == waits_in:
            return True
        frame = frame.f_back
    return False


def _leave_the_pipe() -> None:
    """Keep the signals of a forked process, a worker that loads data, out of its parent's pipe."""
    if _sinks:
        signal.set_wakeup_fd(-1)
        _sinks.clear()


os.register_at_fork(after_in_child=_leave_the_pipe)
