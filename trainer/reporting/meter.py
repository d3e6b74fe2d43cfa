"""Time of a run, and its memory by phases. Only a pause (evaluation, saving) waits for a device."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import psutil
import torch

from ..text import metrics_text, size
from .memory import PeakMemory
from .speed import UNITS, steady_speed

T = TypeVar("T")


class Meter:
    """Clocks of this rank. Evaluation and saving are not part of the training speed.

    Attributes:
        born: the start of the process, on the clock of ``time.perf_counter``.
        spent: seconds apart from training, by their reason.
        before: trained tokens and seconds of the processes that this process continues. The restore
            sets it.
        totals: samples, tokens that went through the model and tokens with a loss, of this process.
        rows: the speeds and times of the last 1,000 logged rows, which give the speed of the run.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.memory = PeakMemory(device)
        self.born = time.perf_counter() - (time.time() - psutil.Process().create_time())
        self.spent: dict[str, float] = defaultdict(float)
        self.before = {"tokens": 0.0, "seconds": 0.0}
        self.totals = dict.fromkeys(UNITS, 0.0)
        self.rows: deque[dict[str, float]] = deque(maxlen=1000)

        self._waited = 0.0
        self._training_began = self.born
        self._start_reading(self.born)
        self._activity = ""
        self._changes = 0

    def _start_reading(self, now: float) -> None:
        """Count anew for the next logged row."""
        self._reading_began = now
        self._paused_seconds = 0.0
        self._steps = 0
        self._counts = dict.fromkeys(UNITS, 0.0)

    @property
    def position(self) -> tuple[str, int]:
        """Return the activity of this rank, and a number that grows with the run.

        Any thread may read it.
        """
        return self._activity or self.memory.phase, self._changes

    def _change(self, activity: str = "") -> None:
        self._activity = activity
        self._changes += 1

    @property
    def seconds(self) -> float:
        """Return the time since the start of the process."""
        return time.perf_counter() - self.born

    def start(self) -> None:
        """Begin training. The time from the start of the process until now was start-up."""
        self.spent["start-up"] = self.seconds
        self._training_began = time.perf_counter()
        self._start_reading(self._training_began)
        self.memory.enter("training")

    def step(self, samples: int) -> None:
        """Count an optimizer step over ``samples`` samples."""
        self._steps += 1
        self._count("samples", samples)

    def count(self, tokens: float, *, trained: float) -> None:
        """Count a step's tokens over all ranks, for tasks that count tokens.

        Args:
            tokens: that went through the model.
            trained: tokens with a loss.
        """
        self._count("tokens", tokens)
        self._count("trained_tokens", trained)

    def _count(self, unit: str, number: float) -> None:
        self._counts[unit] += number
        self.totals[unit] += number

    def until_now(self) -> dict[str, float]:
        """Return trained tokens and seconds since the run's start, over all of its processes."""
        return {
            "tokens": self.before["tokens"] + self.totals["trained_tokens"],
            "seconds": round(self.before["seconds"] + self.seconds, 3),
        }

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Count the time and memory inside for ``name`` instead of training.

        A GPU ends the steps before first.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        began = time.perf_counter()
        phase_around = self.memory.enter(name)
        self._change()

        yield

        self._change()
        self.memory.enter(phase_around)
        seconds = time.perf_counter() - began
        self.spent[name] += seconds
        self._paused_seconds += seconds

    def waiting(self, name: str, source: Iterable[T]) -> Iterator[T]:
        """Yield the same items, and count the time in which the host waits for each of them."""
        items = iter(source)
        while True:
            began = time.perf_counter()
            self._change(name)
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self._change()
            self._waited += time.perf_counter() - began
            yield item

    def read(self, steps_left: int) -> dict[str, float]:
        """Return the speed, time and peak memory of this rank for a logged row.

        The speed is that since the last reading, in samples (and tokens) of all ranks.
        """
        now = time.perf_counter()
        busy = max(now - self._reading_began - self._paused_seconds, 1e-9)
        values = {}
        for unit, count in self._counts.items():
            if count or unit == "samples":
                values[f"{unit}_per_second"] = round(count / busy, 3)
        values["seconds"] = round(now - self._training_began, 3)
        values["eta_seconds"] = round(busy / max(1, self._steps) * steps_left, 1)
        values["peak_memory_bytes"] = self.memory.read()

        self.rows.append(values)
        self._start_reading(now)
        return values

    def summary(
        self, gather: Callable[[Any], list[Any]], operations: float, world_size: int, precision: str
    ) -> dict[str, Any]:
        """Return the seconds of this process by their use, the speed, and the peak memory.

        Collective: call on every rank.

        Args:
            gather: collects a value of every rank.
            operations: floating-point operations of a token with the parameters, forward and
                backward.
            precision: of the layers' computations: ``fp32``, ``bf16`` or ``fp16``.
        """
        wall = self.seconds
        training = max(wall - sum(self.spent.values()), 1e-9)
        seconds = {**self.spent, "data": self._waited, "training": training, "wall": wall}
        facts: dict[str, Any] = {
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "peak_memory_bytes": gather(self.memory.read()),
            "memory": self.memory.peaks,
        }
        for unit, total in self.totals.items():
            if total:
                speed = steady_speed(self.rows, unit)
                facts |= {f"{unit}_per_second": round(speed or total / training, 3)}
        if self.totals["tokens"]:
            per_rank = facts["tokens_per_second"] / world_size
            facts |= self._utilization(operations * per_rank, precision)
        return facts

    def _utilization(self, operations_per_second: float, precision: str) -> dict[str, float]:
        """Return ``mfu``, the share of the GPU's peak. Empty if no peak is known."""
        if self.device.type != "cuda":
            return {}

        from .gpus import peak_of  # reads a table

        device = torch.cuda.get_device_properties(self.device)
        if precision == "fp32" and torch.backends.cuda.matmul.fp32_precision == "tf32":
            precision = "tf32"
        peak = peak_of(device.name, device.total_memory, precision)
        return {"mfu": round(operations_per_second / (peak * 1e12), 4)} if peak else {}


def summary_text(summary: Mapping[str, Any], model: object) -> str:
    """Return the last two lines of a run, for people. summary.json has the details.

    Args:
        summary: the content of summary.json.
        model: the folder of the exported model.
    """
    steps = summary["steps"]
    end = f"done: {steps} steps"
    if steps < summary["total_steps"]:
        end = f"stopped at step {steps} of {summary['total_steps']}"
        if summary.get("stopped_by"):
            end += f" ({summary['stopped_by']})"
    results = [end, metrics_text(summary["evaluation"])]
    if summary.get("best"):
        best = summary["best"]
        results.append(f"best {best['metric']} {best['value']:.4f} at step {best['step']}")

    parts = [f"{summary['seconds']['wall']:.1f} s"]
    for unit in UNITS:
        if f"{unit}_per_second" in summary:
            parts.append(f"{summary[f'{unit}_per_second']:,.0f} {unit.replace('_', ' ')}/s")
    if "mfu" in summary:
        parts.append(f"MFU {summary['mfu']:.1%}")
    parts.append(f"peak memory {size(max(summary['peak_memory_bytes']))}")
    return f"{', '.join(filter(None, results))}\n{', '.join(parts)}; model: {model}"
