"""The clock of a run, and the steps of each of its attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..hooks import Callback, StepInfo
from ..reporting.attempts import Attempts
from ..run import Run


class Clock(Callback):
    """Counts steps and samples for the speed, and keeps attempts.json up to date."""

    def on_start(self, run: Run) -> None:
        self._run = run
        self._attempts = Attempts(run.directory, run.meter.seconds, run.step)
        run.meter.start()

    def on_step(self, run: Run, info: StepInfo) -> None:
        run.meter.step(info.samples - run.step_began)
        self._attempts.note(run.step, now=run.saves_at(info.step))

    def summary(self) -> Mapping[str, Any]:
        """Return all attempts of the run."""
        return {"attempts": self._attempts.note(self._run.step, now=True)}
