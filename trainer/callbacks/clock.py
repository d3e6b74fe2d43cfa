"""The clock of a run, and the start, the end and the steps of each attempt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ..checkpoint.disk import part_of, read_json
from ..hooks import Callback, StepInfo
from ..run import Run

FILE = "attempts.json"
# A killed attempt loses at most this time.
_WRITE_SECONDS = 5.0


class Clock(Callback):
    """Counts steps and samples for the speed, and keeps attempts.json up to date.

    An attempt is the part of a run from one start of the processes to the next.
    """

    _next_write = 0.0

    def on_start(self, run: Run) -> None:
        """Read the attempts of before."""
        self._run = run
        self._path = run.directory.path / FILE
        self._before = read_json(self._path) if self._path.exists() else []
        self._this = {"started": time.time() - run.meter.seconds, "first_step": run.step}
        run.meter.start()

    def on_step(self, run: Run, info: StepInfo) -> None:
        run.meter.step(info.samples - info.began)
        if run.saves_at(info.step) or time.monotonic() >= self._next_write:
            self._write()

    def summary(self) -> Mapping[str, Any]:
        """Return all attempts of the run."""
        return {"attempts": self._write()}

    def _write(self) -> list[dict[str, Any]]:
        """Write attempts.json on the main process, and return all attempts."""
        run, path = self._run, self._path
        self._next_write = time.monotonic() + _WRITE_SECONDS
        self._this |= {"seconds": round(run.meter.seconds, 3), "last_step": run.step}
        rows = [*self._before, self._this]
        if run.is_main:
            run.directory.write_json(part_of(path).name, rows)
            part_of(path).replace(path)
        return rows
