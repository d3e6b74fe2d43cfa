"""Time and memory of a run by phases. Only a pause (evaluation, saving) waits for a device."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import psutil
import torch

from ..text import metrics_text, size
from .peak_memory import PeakMemory
from .speed import UNITS, steady_speed

T = TypeVar("T")
_calls = 0  # of models, in this process


def count_call(model: object, arguments: object) -> None:
    """Count a call of a model: a hook, which copies of the model share."""
    global _calls
    _calls += 1


class Meter:
    """Clocks of this rank. Evaluation and saving are not part of the training speed.

    Attributes:
        born: the start of the process, on the clock of ``time.perf_counter``.
        spent: seconds apart from training, by reason.
        before: trained tokens and seconds of the processes that this process continues.
        totals: samples, tokens that went through the model and tokens with a loss, of this process.
        rows: the last 1,000 logged rows, which give the speed of the run.
    """

    _waited = 0.0
    _activity = ""
    _changes = 0

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.memory = PeakMemory(device)
        self.born = time.perf_counter() - (time.time() - psutil.Process().create_time())
        self.spent: dict[str, float] = defaultdict(float)
        self.before = {"tokens": 0.0, "seconds": 0.0}
        self.totals = dict.fromkeys(UNITS, 0.0)
        self.rows: deque[dict[str, float]] = deque(maxlen=1000)

        self._start_reading()

    def _start_reading(self) -> None:
        """Count anew for the next logged row."""
        self._read_training = self.training
        if len(self.rows) < 2:  # the first step, which may compile, tells nothing about the end
            self._steps, self._counted_from = 0, self.training
        self._read_totals = dict(self.totals)

    @property
    def position(self) -> tuple[str, int]:
        """Return the activity of this rank with its call of the model, and a number that grows.

        Ranks that call the model a different number of times wait for each other for ever.
        """
        activity = self._activity or self.memory.phase
        return f"{activity}, call {_calls} of the model", self._changes

    def _change(self, activity: str = "") -> None:
        self._activity = activity
        self._changes += 1

    @property
    def seconds(self) -> float:
        """Return the time since the start of the process."""
        return time.perf_counter() - self.born

    @property
    def training(self) -> float:
        """Return the seconds that were spent on training so far."""
        return self.seconds - sum(self.spent.values())

    def start(self) -> None:
        """Begin training. The time from the start of the process until now was start-up."""
        self.spent["start-up"] = self.seconds
        self._start_reading()
        self.memory.enter("training")

    def step(self, samples: int) -> None:
        """Count an optimizer step over a number of samples."""
        self._steps += 1
        self.totals["samples"] += samples

    def count(self, tokens: float, *, trained: float) -> None:
        """Count a step's tokens over all ranks: those through the model, and those with a loss."""
        self.totals["tokens"] += tokens
        self.totals["trained_tokens"] += trained

    def until_now(self) -> dict[str, float]:
        """Return trained tokens and seconds since the run's start, over all processes."""
        return {
            "tokens": self.before["tokens"] + self.totals["trained_tokens"],
            "seconds": round(self.before["seconds"] + self.seconds, 3),
        }

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Count the time and memory inside for ``name``, once a GPU has ended the steps before."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        began = time.perf_counter()
        phase_around = self.memory.enter(name)
        self._change()

        yield

        self._change()
        self.memory.enter(phase_around)
        self.spent[name] += time.perf_counter() - began

    def waiting(self, name: str, source: Iterable[T]) -> Iterator[T]:
        """Yield the same items, and count the time in which the host waits for each of them."""
        items = iter(source)
        while True:
            began = time.perf_counter()
            self._change(name)
            item = next(items, None)
            self._change()
            self._waited += time.perf_counter() - began
            if item is None:
                return
            yield item

    def read(self, steps_left: int) -> dict[str, float]:
        """Return the speed, time and peak memory of this rank for a logged row.

        The speed is that since the last reading, in samples (and tokens) of all ranks.
        """
        busy = self.training - self._read_training
        values = {}
        for unit, total in self.totals.items():
            count = total - self._read_totals[unit]
            if count or unit == "samples":
                values[f"{unit}_per_second"] = round(count / busy, 3)
        seconds_per_step = (self.training - self._counted_from) / max(1, self._steps)
        values |= {
            "seconds": round(self.seconds - self.spent["start-up"], 3),
            "eta_seconds": round(seconds_per_step * steps_left, 1),
            "peak_memory_bytes": self.memory.read(),
        }
        self.rows.append(values)
        self._start_reading()
        return values

    def summary(
        self, gather: Callable[[Any], list[Any]], operations: float, world_size: int, precision: str
    ) -> dict[str, Any]:
        """Return the seconds of this process by use, the speed, and the peak memory. Collective.

        Args:
            operations: floating-point operations of a token, forward and backward.
            precision: of the layers' computations: ``fp32``, ``tf32``, ``bf16`` or ``fp16``.
        """
        training = self.training
        seconds = self.spent | {"data": self._waited, "training": training, "wall": self.seconds}
        facts: dict[str, Any] = {
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "peak_memory_bytes": gather(self.memory.read()),
            "memory": self.memory.peaks,
        }
        for unit, total in self.totals.items():
            if total:
                speed = steady_speed(self.rows, unit) or total / training
                facts[f"{unit}_per_second"] = round(speed, 3)
        if self.totals["tokens"] and self.device.type == "cuda":
            from .gpus import peak_of  # reads a table

            peak = peak_of(torch.cuda.get_device_name(self.device), precision)
            if peak:
                done = operations * facts["tokens_per_second"]
                facts["mfu"] = round(done / (world_size * peak * 1e12), 4)
        return facts


def summary_text(summary: Mapping[str, Any], model: object) -> str:
    """Return the last three lines of a run, for people."""
    text = "done: {steps} steps"
    if summary["steps"] < summary["total_steps"]:
        text = "stopped at step {steps} of {total_steps}"
        if summary.get("stopped_by"):
            text += " ({stopped_by})"
    if summary["evaluation"]:
        text += ", {values}"
    text += "\n{seconds[wall]:.1f} s"
    if "tokens_per_second" in summary:
        text += ", {tokens_per_second:,.0f} tokens/s"
    elif "samples_per_second" in summary:
        text += ", {samples_per_second:,.0f} samples/s"
    if "mfu" in summary:
        text += ", MFU {mfu:.1%}"
    text += ", peak memory {peak}\n"
    if summary.get("best"):
        text += "best {best[metric]} {best[value]:.4f} at step {best[step]}; "
    text += "model: {model}"
    more = {
        "values": metrics_text(summary["evaluation"]),
        "peak": size(max(summary["peak_memory_bytes"])),
        "model": model,
    }
    return text.format_map({**summary, **more})
