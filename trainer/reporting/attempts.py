"""The attempts of a run: the start, the end and the steps of each, in attempts.json."""

from __future__ import annotations

import os
import time
from typing import Any

from ..checkpoint.disk import part_of
from ..checkpoint.untrusted import read_json
from .directory import RunDirectory, json_text

FILE = "attempts.json"
# A killed attempt loses at most this much of its end.
_WRITE_SECONDS = 5.0


class Attempts:
    """This attempt of a run and the attempts before it. The main process writes them.

    An attempt is the part of a run from one start of its processes to the next. ``started`` is in
    seconds since 1970, ``seconds`` is the time until the main process was last seen, and
    ``first_step`` and ``last_step`` are the optimizer steps before and after it.

    Args:
        directory: of the run, claimed.
        seconds: the age of the process.
        step: optimizer steps done so far.
    """

    def __init__(self, directory: RunDirectory, seconds: float, step: int) -> None:
        self._directory = directory
        self._this = {"started": time.time() - seconds, "first_step": step}
        self._next_write = 0.0
        try:
            self._before = list(read_json(directory.path / FILE))
        except (OSError, ValueError, TypeError):  # no account stops a run
            self._before = []

    def note(self, step: int, *, now: bool = False) -> list[dict[str, Any]]:
        """Write the present step every few seconds, or ``now``, and return all attempts."""
        seconds = time.time() - self._this["started"]
        rows = [*self._before, {**self._this, "seconds": round(seconds, 3), "last_step": step}]
        if self._directory.main and (now or time.monotonic() >= self._next_write):
            self._next_write = time.monotonic() + _WRITE_SECONDS
            path = self._directory.path / FILE
            self._directory.write(part_of(path).name, json_text(rows))
            os.replace(part_of(path), path)
        return rows
