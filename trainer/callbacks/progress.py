"""What a run prints while it trains."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

from ..hooks import Callback, StepInfo
from ..run import Run
from ..text import clock, metrics_text, size

_TOKENS = re.compile(r"eval/([^/]+/)?tokens")


class Progress(Callback):
    """Shows one bar for the job on a terminal, and plain lines otherwise. log.txt has the lines."""

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
            shown = metrics_text(info.evaluation)
            tokens = sum(_tokens(info.evaluation))
            if tokens:
                shown += f"  {tokens / run.meter.lasted:.0f} tokens/s"
            self._print(run, f"{at}  {shown}")

        if info.is_last and self.bar is not None:
            self.bar.close()

    def _show_metrics(self, run: Run, at: str, metrics: Mapping[str, float]) -> None:
        speed = _speed(metrics)
        memory = size(metrics["peak_memory_bytes"])
        line = (
            f"{at}  loss {metrics['loss']:.4f}  {_rates(metrics, '.3e')}  "
            f"norm {metrics['grad_norm']:.3f}  {speed}  "
            f"eta {clock(metrics['eta_seconds'])}  mem {memory}"
        )
        if self.bar is None:
            self._print(run, line)
        else:
            rates = _rates(metrics, ".2e")
            shown = f"loss {metrics['loss']:.4f} {rates} {speed} mem {memory}"
            self.bar.set_postfix_str(shown)
            run.directory.line(line)

    def _print(self, run: Run, text: str) -> None:
        run.directory.line(text)
        if self.bar is None:
            print(text)
        else:
            self.bar.write(text)
        sys.stdout.flush()


def _rates(metrics: Mapping[str, float], form: str) -> str:
    """Return the learning rate. If groups have others, those by the groups' names as well."""
    text = f"lr {metrics['lr']:{form}}"
    groups = []
    for name, value in metrics.items():
        if name.startswith("lr/"):
            groups.append(f"{name.removeprefix('lr/')} {value:{form}}")
    return f"{text} ({', '.join(groups)})" if groups else text


def _tokens(evaluation: Mapping[str, float]) -> list[float]:
    """Return the tokens of each set that was measured, where its task counts them."""
    return [value for name, value in evaluation.items() if _TOKENS.fullmatch(name)]


def _speed(metrics: Mapping[str, float]) -> str:
    unit = "tokens" if "tokens_per_second" in metrics else "samples"
    return f"{metrics[f'{unit}_per_second']:.0f} {unit}/s"
