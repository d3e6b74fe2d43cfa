"""The lines that a run prints during training."""

from __future__ import annotations

from collections.abc import Mapping

from ..hooks import Callback, StepInfo
from ..private.torch import count_graphs
from ..run import Run
from ..text import clock, metrics_text


class Progress(Callback):
    """Prints lines of logged steps, each at least a second apart, and of evaluations."""

    _next_line = 0.0  # in seconds of the run
    _tells_graphs = True

    def on_step(self, run: Run, info: StepInfo) -> None:
        if not run.is_main:
            return

        at = f"step {info.step}/{run.total_steps}  "
        metrics = info.metrics
        if metrics and (info.is_last or metrics["seconds"] >= self._next_line):
            self._next_line = metrics["seconds"] + min(max(1, metrics["seconds"] / 20), 10)
            run.say(at + _line(metrics))
        if info.evaluation:
            run.say(at + metrics_text(info.evaluation))

        if run.plan.compile and self._tells_graphs:
            graphs, breaks = count_graphs()
            run.say(f"graphs compiled: {graphs}" + f", graph breaks: {breaks}" * bool(breaks))
        self._tells_graphs = False


def _line(metrics: Mapping[str, float]) -> str:
    """Return the numbers of a logged step as a line."""
    unit = "tokens" if "tokens_per_second" in metrics else "samples"
    speed = metrics[f"{unit}_per_second"]
    left = "?"
    if metrics["seconds"] > 5 or not metrics["eta_seconds"]:  # few steps say little about the rest
        left = clock(round(metrics["eta_seconds"], -1))
    form = "loss {loss:.4f}  lr {lr:.2e}  norm {grad_norm:.3f}"
    digits = 0 if speed >= 10 else 2
    return f"{form.format_map(metrics)}  {speed:.{digits}f} {unit}/s  eta {left}"
