"""The lines and the bar that a run prints during training."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm

from ..hooks import Callback, StepInfo
from ..private.torch import count_graphs
from ..run import Run
from ..text import clock, metrics_text, size

# Without tqdm's rate and time, which count the steps before a resume as steps of this process.
_BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{postfix}"


class Progress(Callback):
    """A bar for the job on a terminal, and plain lines otherwise. log.txt has the lines.

    The first and the last logged step have a line. Between them lines are seconds apart: a second
    at first, ten seconds after some minutes. metrics.jsonl has every logged step.
    """

    def __init__(self) -> None:
        self.bar: tqdm[Any] | None = None
        self._first: tuple[int, float] | None = None  # a step and its moment
        self._next_line = self._next_evaluation = 0.0

    def on_step(self, run: Run, info: StepInfo) -> None:
        if not run.is_main:
            return

        if self.bar is None and sys.stderr.isatty():
            self.bar = tqdm(total=run.total_steps, bar_format=_BAR, dynamic_ncols=True)
        if self.bar is not None:
            self.bar.update(info.step - self.bar.n)

        now = time.monotonic()
        first_step, began = self._first or (info.step, now)
        at = f"step {info.step}/{run.total_steps}"
        if info.metrics is not None and (info.is_last or now >= self._next_line):
            self._next_line = now + min(max(1, (now - began) / 20), 10)
            seconds_per_step = (now - began) / max(1, info.step - first_step)
            left = seconds_per_step * (run.last_step - info.step)
            # The steps of the first seconds say nothing about the others.
            is_told = min(now - began, left) > 5 or info.is_last
            eta = f"eta {clock(round(left, -1))}" if is_told else ""
            self._show_metrics(run, at, info.metrics, eta)
        if info.evaluation is not None and (info.is_last or now >= self._next_evaluation):
            self._next_evaluation = now + 1
            run.say(f"{at}  {metrics_text(info.evaluation)}")

        if run.plan.compile and self._first is None:
            graphs, breaks = count_graphs()
            text = "graphs compiled: {}, graph breaks: {}" if breaks else "graphs compiled: {}"
            run.say(text.format(graphs, breaks))
        self._first = first_step, began

        if info.is_last and self.bar is not None:
            self.bar.close()

    def _show_metrics(self, run: Run, at: str, metrics: dict[str, float], eta: str) -> None:
        loss = "loss {loss:.4f}"
        digits = 0 if metrics["samples_per_second"] >= 10 else 2
        speed = f"{{samples_per_second:.{digits}f}} samples/s"
        if "tokens_per_second" in metrics:
            speed = "{tokens_per_second:.0f} tokens/s"
        pace = [speed, eta] if eta else [speed]
        rate = "lr {lr:.2e}  norm {grad_norm:.3f}"
        memory = size(metrics["peak_memory_bytes"])
        line = "  ".join([at, loss, rate, *pace, memory]).format_map(metrics)
        if self.bar is None:
            run.say(line)
        else:
            self.bar.set_postfix_str(", ".join([loss, *pace]).format_map(metrics))
            run.directory.line(line)
