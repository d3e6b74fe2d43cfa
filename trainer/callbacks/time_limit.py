"""The key ``max_time``: an end by the clock."""

from __future__ import annotations

import sys

from ..hooks import Callback, StepInfo
from ..run import Run
from ..text import seconds_of


class TimeLimit(Callback):
    """Stops the run after ``max_time`` by the main process's clock, since the process started."""

    def __init__(self, max_time: str) -> None:
        self.max_time = max_time
        self.limit_seconds = seconds_of(max_time)

    def on_step(self, run: Run, info: StepInfo) -> None:
        if run.is_main and run.meter.seconds > self.limit_seconds:
            self.limit_seconds = sys.maxsize
            run.stop(f"max_time {self.max_time} has passed")
