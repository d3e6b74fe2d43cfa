"""Signals as requests to stop, and a watch that ends this process where it cannot take them; the
launcher's end.

Python's handlers run between instructions of the main thread only: one that waits in a collective
or for its GPU, for a rank that is gone, never takes the signal. A thread of its own reads the
signals as bytes, and sees whether the main thread still moves.
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

from .launcher import is_alive, launcher_processes

_PATIENCE_SECONDS = 10.0  # in one call of C, after a signal; torchrun and DeepSpeed kill after 30
_ECHO_SECONDS = (
    5.0  # a scheduler's SIGTERM comes twice: to each process, and handed on by the launcher
)
_LIBRARY = os.path.dirname(os.__file__)


class LauncherWatch:
    """Looks whether the launcher is gone (killed), once a second at most."""

    def __init__(self) -> None:
        self._processes, self._looked = launcher_processes(), time.monotonic()

    def is_gone(self) -> bool:
        """Tell whether one of the processes above this one has ended; False if they were looked at
        just now.
        """
        if (now := time.monotonic()) - self._looked < 1.0:
            return False
        self._looked = now
        return not all(map(is_alive, self._processes))


@contextlib.contextmanager
def signals_watched(
    ask: Callable[[int], None], allowed_seconds: Callable[[], float], *, waits_in: str
) -> Iterator[None]:
    """Hand SIGTERM and SIGINT to ``ask``; end the process at the second SIGTERM, and at any where
    it is stuck.

    Python takes signals in its main thread only: in another one nothing is changed.

    Args:
        ask: is called with the signal's number, between two instructions of the main thread.
        allowed_seconds: how long the main thread may stay in one call of C, if that is more than
            ten seconds; infinite where it has all the time it needs.
        waits_in: the file whose calls wait for other ranks, and come back by themselves.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    previous = {
        number: signal.signal(number, lambda number, frame: ask(number)) for number in numbers
    }
    source, sink = os.pipe()
    os.set_blocking(sink, False)
    _sinks.append(sink)
    woken = signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(source, allowed_seconds, waits_in), daemon=True)
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


def _watch(source: int, allowed_seconds: Callable[[], float], waits_in: str) -> None:
    """End this process where a signal came and its main thread stays in one call of C.

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
        elif _comes_back(threading.main_thread(), waits_in):
            since = now
        elif now - since > max(_PATIENCE_SECONDS, allowed_seconds()):
            os._exit(128 + asked)


def _comes_back(thread: threading.Thread, waits_in: str) -> bool:
    """Tell whether a thread waits in Python's own library (a thread, a process, a file), or in the
    named file.
    """
    frame = sys._current_frames().get(thread.ident or 0)
    file = frame.f_code.co_filename if frame else _LIBRARY
    if file.startswith(_LIBRARY) and "site-packages" not in file:
        return True
    while frame is not None and frame.f_code.co_filename != waits_in:
        frame = frame.f_back
    return frame is not None


_sinks: list[int] = []  # where the signals of this process are written


def _part_from_parent() -> None:
    """Keep the signals of a forked process (a worker that loads data) from being taken for its
    parent's.
    """
    if _sinks:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_part_from_parent)


def _count(_: object) -> int:
    global _beats
    _beats += 1
    return 0


# Python calls it in its main thread as soon as that is between two of its instructions. (It must
# not be collected.)
_BEAT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_count)
_beats = 0
