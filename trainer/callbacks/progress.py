"""The lines and the bar that a run prints during training."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from ..hooks import Callback, StepInfo
from ..run import Run
from ..text import clock, metrics_text, size


class Progress(Callback):
    """A bar for the job on a terminal, and plain lines otherwise. log.txt has the lines."""

    def __init__(self) -> None:
        self.bar: tqdm[Any] | None = None

    def on_step(self, run: Run, info: StepInfo) -> None:
        if not run.is_main:
            return

        if self.bar is None and sys.stderr.isatty():
            self.bar = tqdm(total=run.total_steps, unit="step", dynamic_ncols=True)
        if self.bar is not None:
            self.bar.update(info.step - self.bar.n)

        at = f"step {info.step}/{run.total_steps}"
        if info.metrics is not None:
            self._show_metrics(run, at, info.metrics)
        if info.evaluation is not None:
            self._print(run, f"{at}  {metrics_text(info.evaluation)}")

        if info.is_last and self.bar is not None:
            self.bar.close()

    def _show_metrics(self, run: Run, at: str, metrics: Mapping[str, float]) -> None:
        unit = "tokens" if "tokens_per_second" in metrics else "samples"
        shown = (
            f"loss {metrics['loss']:.4f}  lr {metrics['lr']:.2e}  norm {metrics['grad_norm']:.3f}  "
            f"{metrics[f'{unit}_per_second']:.0f} {unit}/s"
        )
        memory = size(metrics["peak_memory_bytes"])
        line = f"{at}  {shown}  eta {clock(metrics['eta_seconds'])}  {memory}"
        if self.bar is None:
            self._print(run, line)
        else:
            self.bar.set_postfix_str(f"{shown}  {memory}")
            run.directory.line(line)

    def _print(self, run: Run, text: str) -> None:
        run.directory.line(text)
        if self.bar is None:
            print(text)
        else:
            self.bar.write(text)
        sys.stdout.flush()
