"""The lines and the bar that a run prints during training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from ..hooks import Callback, StepInfo
from ..private.torch import count_graphs
from ..run import Run
from ..text import clock, metrics_text, size

# Without tqdm's rate and time, which count the steps before a resume as steps of this process.
_BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"


class Progress(Callback):
    """A bar for the job on a terminal. Otherwise plain lines, each at least a second apart."""

    def __init__(self) -> None:
        self.bar: tqdm[Any] | None = None
        self._next_line = 0.0  # in seconds of the run

    def on_step(self, run: Run, info: StepInfo) -> None:
        if not run.is_main:
            return

        is_first = self.bar is None
        if self.bar is None:
            self.bar = tqdm(
                total=run.total_steps,
                bar_format=_BAR,
                dynamic_ncols=True,
                disable=None,  # unless on a terminal
            )
        self.bar.update(info.step - self.bar.n)

        at = f"step {info.step}/{run.total_steps}"
        if info.metrics is not None:
            seconds = info.metrics["seconds"]
            if info.is_last or seconds >= self._next_line:
                self._next_line = seconds + min(max(1, seconds / 20), 10)
                self._show_metrics(run, self.bar, at, info.metrics)
        if info.evaluation is not None:
            run.say(f"{at}  {metrics_text(info.evaluation)}")

        if run.plan.compile and is_first:
            graphs, breaks = count_graphs()
            run.say(f"graphs compiled: {graphs}" + f", graph breaks: {breaks}" * bool(breaks))
        if info.is_last:
            self.bar.close()

    def _show_metrics(
        self, run: Run, bar: tqdm[Any], at: str, metrics: Mapping[str, float]
    ) -> None:
        loss, left = "loss {loss:.4f}", "eta ?"
        seconds_left = metrics["eta_seconds"]
        if metrics["seconds"] > 5 or not seconds_left:  # few steps say little about the others
            left = f"eta {clock(round(seconds_left, -1))}"
        digits = 0 if metrics["samples_per_second"] >= 10 else 2
        speed = f"{{samples_per_second:.{digits}f}} samples/s"
        if "tokens_per_second" in metrics:
            speed = "{tokens_per_second:.0f} tokens/s"
        rate = "lr {lr:.2e}  norm {grad_norm:.3f}"
        memory = size(metrics["peak_memory_bytes"])
        line = "  ".join([at, loss, rate, speed, left, memory]).format_map(metrics)
        if bar.disable:
            run.say(line)
        else:
            bar.set_postfix_str(", ".join([loss, speed, left]).format_map(metrics))
            run.directory.line(line)
