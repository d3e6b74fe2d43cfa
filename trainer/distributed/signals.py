"""SIGTERM and Ctrl-C as requests to stop, and the end of a process that cannot take them.

Python runs the handler of a signal between two instructions of the main thread, and a main thread
that waits in C for a rank that is gone never comes to the next instruction. So Python also writes
the number of each signal into a pipe, the handler writes an answer behind the number, and a thread
reads both. The thread ends the process at a second SIGTERM, or ten seconds after a signal without
an answer, unless the main thread waits for other ranks in a call that comes back.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# In a call of C, after a signal. torchrun and DeepSpeed kill after 30.
_PATIENCE_SECONDS = 10.0
# A scheduler's SIGTERM comes twice: to each process, and once more from the launcher.
_ECHO_SECONDS = 5.0
_LOOK_SECONDS = 0.25
_ANSWER, _END = b"\0", b"\xff"  # no signal has the number 0 or 255
STANDARD_LIBRARY = os.path.dirname(os.__file__)


@contextmanager
def signals_watched(
    ask: Callable[[int], None], allowed_seconds: Callable[[], float], *, waits_in: str
) -> Iterator[None]:
    """Pass SIGTERM, SIGINT and SIGUSR1 to ``ask``. End a process that cannot take them.

    Python takes signals in its main thread only: in another thread nothing is changed.

    Args:
        allowed_seconds: how long the main thread may stay in a call of C, if that is more than ten.
        waits_in: the file whose calls wait for other ranks, and come back by themselves.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    source, sink = os.pipe()
    os.set_blocking(sink, False)
    process = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:  # and not that of a worker, which has this handler as well
            os.write(sink, _ANSWER)
        ask(number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    previous_handlers = {number: signal.signal(number, handle) for number in numbers}
    previous_sink = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    thread = threading.Thread(
        target=_read_signals, args=(source, allowed_seconds, waits_in), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_sink)
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        os.write(sink, _END)  # a worker that lives on keeps the pipe open
        thread.join()
        os.close(sink)
        os.close(source)


def _read_signals(source: int, allowed_seconds: Callable[[], float], waits_in: str) -> None:
    """Read signals and their answers, and end the process if the main thread takes none."""
    first = 0  # signal
    came = 0.0  # when the first signal came
    unanswered_since: float | None = None
    while True:
        ready, _, _ = select.select([source], [], [], _LOOK_SECONDS if unanswered_since else None)
        now = time.monotonic()
        if ready:
            byte = os.read(source, 1)
            if byte == _END:
                return
            number = byte[0]
            if byte == _ANSWER:
                unanswered_since = None
            elif number in (signal.SIGTERM, signal.SIGINT):
                first = first or number
                came = came or now
                unanswered_since = unanswered_since or now
                if number == signal.SIGTERM and now - came > _ECHO_SECONDS:
                    os._exit(128 + number)

        if unanswered_since:
            if _waits_in(waits_in):
                unanswered_since = now
            if now - unanswered_since > max(_PATIENCE_SECONDS, allowed_seconds()):
                os._exit(128 + first)


def frame_of_main_thread() -> FrameType:
    """Return the innermost frame of Python of the main thread."""
    return sys._current_frames()[threading.main_thread().ident or 0]


def _waits_in(file: str) -> bool:
    """Return whether the main thread is in a call of a file."""
    return any(
        frame.f_code.co_filename == file
        for frame, _ in traceback.walk_stack(frame_of_main_thread())
    )


# Keep the signals of a forked process, a worker that loads data, out of its parent's pipe.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
