"""A contender's side of the turns: it trains for as many steps as it is told, then waits without
using a core.
"""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import TextIO

from .work import Work


class Turns:
    """Counts this process's steps, and stands in a read of the coordinator's socket where a turn
    ends.

    Attributes:
        waited: seconds spent waiting so far; the present wait, which began at ``waits_since``,
            comes on top.
    """

    def __init__(self, name: str, work: Work) -> None:
        self.name, self.rank, self.folder = name, work.rank, Path(work.folder)
        self._stream: TextIO | None = None
        self._answer: dict[str, object] = {"name": name, "rank": self.rank}
        self._left, self._begin, self._cpu = work.warm_up, time.perf_counter(), time.process_time()
        self.waited = 0.0
        self.waits_since: float | None = None

    def step_done(self) -> None:
        """Count an optimizer step. At the end of a turn answer with its seconds, and wait for the
        next.
        """
        self._left -= 1
        if not self._left:
            self._wait()

    def _wait(self) -> None:
        end, cpu = time.perf_counter(), time.process_time()
        if self._stream is None:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(self.folder / "socket"))
            self._stream = connection.makefile("rw")
        print(
            json.dumps({**self._answer, "seconds": end - self._begin, "cpu": cpu - self._cpu}),
            file=self._stream,
        )
        self.waits_since = time.perf_counter()
        self._stream.flush()
        self._left = int(self._stream.readline())
        idle = time.process_time() - cpu
        self.waited += time.perf_counter() - self.waits_since
        self.waits_since = None
        self._answer = {"idle": idle}  # of the wait before the turn that begins now
        self._begin, self._cpu = time.perf_counter(), time.process_time()
