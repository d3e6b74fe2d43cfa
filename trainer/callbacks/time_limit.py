"""An end by the clock."""

from __future__ import annotations

from ..hooks import Callback, StepInfo
from ..run import Run
from ..text import seconds_of


class TimeLimit(Callback):
    """Stops the run after ``max_time`` of this process, its start-up included, by the clock of the
    main process.
    """

    def __init__(self, max_time: str) -> None:
        self.max_time, self.left = max_time, seconds_of(max_time)

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        if trainer.is_main and trainer.meter.seconds > self.left:
            self.left = float("inf")
            trainer.stop(f"max_time {self.max_time} has passed")
