"""metrics.jsonl: the numbers of a run, a JSON object in each line."""

from __future__ import annotations

from ..hooks import Callback, StepInfo
from ..run import Run


class MetricsFile(Callback):
    """Rows of metrics.jsonl: logged steps, and evaluations."""

    def on_step(self, run: Run, info: StepInfo) -> None:
        if info.metrics:
            run.directory.row(info.metrics)
        if info.evaluation:
            run.directory.row(
                {"step": info.step, "epoch": info.epoch, "samples": info.samples, **info.evaluation}
            )
