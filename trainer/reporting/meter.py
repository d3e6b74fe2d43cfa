"""Time of a run, and its memory by phases.

Nothing here waits for the device within a step; a pause (evaluation, saving) does.
"""

from __future__ import annotations

import contextlib
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import psutil
import torch

from ..text import metrics_text, size
from .memory import PeakMemory
from .speed import UNITS, Speed

T = TypeVar("T")


class Meter:
    """Clocks of this rank. Evaluation and saving are not part of the training speed.

    Attributes:
        born: the start of the process, on the clock of ``time.perf_counter``.
        spent: seconds apart from training, by what they were spent on.
        within: seconds of parts of training.
        lasted: seconds of the newest pause.
        before: trained tokens and seconds of the processes that this one continues; set by who
            resumes.
        total_samples: of this process.
        total_tokens, total_trained_tokens: of this process, those that went through the model, and
            those of them that it was trained on.
        readings: speeds that ``read`` returned, by unit.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.memory = PeakMemory(device)
        self.born = time.perf_counter() - (time.time() - psutil.Process().create_time())
        self.spent: dict[str, float] = defaultdict(float)
        self.within: dict[str, float] = defaultdict(float)
        self.lasted = 0.0
        self.before = {"tokens": 0.0, "seconds": 0.0}
        self.total_samples = 0
        self.total_tokens = 0.0
        self.total_trained_tokens = 0.0

        # Eight bytes each: a run of months logs some millions.
        self.readings = {unit: array("d") for unit in UNITS}
        self._has_read = False

        self._training_began = self.born
        self._start_reading(self.born)

        # Pairs of CUDA events around parts of training, whose times are not read yet.
        self._events: list[tuple[str, Any, Any]] = []

        self._activity = ""
        self._changes = 0

    def _start_reading(self, now: float) -> None:
        """Count anew what the next reading is made of."""
        self._reading_began = now
        self._paused_seconds = 0.0
        self._samples = 0
        self._steps = 0
        self._tokens = 0.0
        self._trained_tokens = 0.0

    @property
    def position(self) -> tuple[str, int]:
        """Return what this rank does, and a number that grows with the run.

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
        """Begin training: what came before, from the start of the process, was start-up."""
        self.spent["start-up"] = self.seconds
        now = time.perf_counter()
        self._training_began = now
        self._reading_began = now
        self._paused_seconds = 0.0
        self.memory.enter("training")

    def step(self, samples: int) -> None:
        """Count an optimizer step over ``samples`` samples."""
        self._steps += 1
        self._samples += samples
        self.total_samples += samples

    def count(self, tokens: float, *, trained: float) -> None:
        """Count a step's tokens over all ranks; not called for tasks that count examples.

        Args:
            tokens: that went through the model.
            trained: those of them that the loss is over.
        """
        self._tokens += tokens
        self.total_tokens += tokens
        self._trained_tokens += trained
        self.total_trained_tokens += trained

    def until_now(self) -> dict[str, float]:
        """Return trained tokens and seconds since the run's start, in all of its processes.

        Start-up counts.
        """
        return {
            "tokens": self.before["tokens"] + self.total_trained_tokens,
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
        self.lasted = time.perf_counter() - began
        self.spent[name] += self.lasted
        self._paused_seconds += self.lasted

    def paused_in_training(self, name: str) -> AbstractContextManager[None]:
        """Pause while training; within another pause the time counts for that one."""
        if self.memory.phase == "training":
            return self.paused(name)
        return contextlib.nullcontext()

    def waiting(self, name: str, source: Iterable[T]) -> Iterator[T]:
        """Yield the same items; what training waits for each counts for ``name``.

        On a GPU that is the time in which the device had nothing left to do: while it still
        computes the step before, the host's waiting costs nothing.
        """
        items = iter(source)
        while True:
            began = self._moment()
            self._change(name)
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self._change()
            self._count_since(began, name)
            yield item

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside for a part of training; on a GPU the device's time."""
        began = self._moment()
        yield
        self._count_since(began, name)

    def _moment(self) -> Any:
        """Return the time; on a GPU an event, which the device passes when it comes to it."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _count_since(self, began: Any, name: str) -> None:
        """Count the time since a moment; that between events is read when a step is logged."""
        now = self._moment()
        if self.device.type == "cuda":
            self._events.append((name, began, now))
        else:
            self.within[name] += now - began

    def read(self, steps_left: int) -> dict[str, float]:
        """Return what a logged row says of speed, time and this rank's peak memory.

        The speed is that since the last reading, in samples (and tokens) of all ranks.
        """
        now = time.perf_counter()
        busy = max(now - self._reading_began - self._paused_seconds, 1e-9)
        values: dict[str, float] = {"samples_per_second": round(self._samples / busy, 3)}
        if self._tokens:
            values["tokens_per_second"] = round(self._tokens / busy, 1)
            values["trained_tokens_per_second"] = round(self._trained_tokens / busy, 1)
        values["seconds"] = round(now - self._training_began, 3)
        values["eta_seconds"] = round(busy / max(1, self._steps) * steps_left, 1)
        values["peak_memory_bytes"] = self.memory.read()

        self._keep_speeds(values)
        self._start_reading(now)
        self._read_events()
        return values

    def _keep_speeds(self, values: Mapping[str, float]) -> None:
        """Keep the speeds of a reading.

        Not of the first one of the process, which holds what is paid once.
        """
        if self._has_read:
            for unit, readings in self.readings.items():
                value = values.get(f"{unit}_per_second")
                if value:
                    readings.append(value)
        self._has_read = True

    def _read_events(self) -> None:
        """Add up the parts of training that have ended on the device."""
        pending = []
        for name, began, ended in self._events:
            if ended.query():
                self.within[name] += began.elapsed_time(ended) / 1e3
            else:
                pending.append((name, began, ended))
        self._events = pending

    def summary(
        self, gather: Callable[[Any], list[Any]], operations: float, world_size: int, precision: str
    ) -> dict[str, Any]:
        """Return where this process's seconds went, the speed, and the peak memory of every rank.

        Collective: call on every rank.

        Args:
            gather: collects a value of every rank.
            operations: floating-point operations of a token with the parameters, forward and
                backward; those of attention were counted.
            precision: what layers compute in: ``fp32``, ``bf16`` or ``fp16``.
        """
        wall = self.seconds
        training = max(wall - sum(self.spent.values()), 1e-9)
        self._read_events()
        rest = max(training - sum(self.within.values()), 0.0)
        seconds = {**self.spent, **self.within}
        seconds |= {"forward and backward": rest, "training": training, "wall": wall}

        samples_speed = self._speed("samples", self.total_samples / training)
        peak_bytes = gather(self.memory.read())
        peaks = gather(self.memory.peaks)
        facts: dict[str, Any] = {
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            **samples_speed.as_dict("samples"),
            "peak_memory_bytes": peak_bytes,
            "memory": self._memory_of_phases(peaks),
        }

        if self.total_tokens:
            tokens_speed = self._speed("tokens", self.total_tokens / training)
            facts |= tokens_speed.as_dict("tokens")
            trained_speed = self._speed("trained_tokens", self.total_trained_tokens / training)
            facts |= trained_speed.as_dict("trained_tokens")

            facts |= self._utilization(operations * tokens_speed.median / world_size, precision)
        return facts

    def _speed(self, unit: str, overall: float) -> Speed:
        """Return the speed in steady state; ``overall`` where too little was logged to know it."""
        steady = Speed.of_readings(self.readings[unit])
        if steady is not None:
            return steady
        return Speed(median=overall, low=overall, high=overall, readings=0)

    def _memory_of_phases(
        self, ranks: list[dict[str, dict[str, int]]]
    ) -> dict[str, dict[str, list[int]]]:
        """Turn ``PeakMemory.peaks`` of all ranks into bytes of every rank, by phase and measure."""
        found: dict[str, dict[str, list[int]]] = {}
        for phase, measures in self.memory.peaks.items():
            of_phase = [peaks.get(phase, {}) for peaks in ranks]
            found[phase] = {}
            for name in measures:
                found[phase][name] = [peaks[name] for peaks in of_phase if name in peaks]
        return found

    def _utilization(self, operations_per_second: float, precision: str) -> dict[str, float]:
        """Return ``mfu``, the share of the GPU's peak; nothing where no peak is known."""
        if self.device.type != "cuda":
            return {}

        from .gpus import peak_of  # reads a table

        device = torch.cuda.get_device_properties(self.device)
        if precision == "fp32" and torch.backends.cuda.matmul.fp32_precision == "tf32":
            precision = "tf32"
        peak = peak_of(device.name, device.total_memory, precision)
        if peak is None:
            return {}
        return {"mfu": round(operations_per_second / (peak * 1e12), 4)}


def summary_text(summary: Mapping[str, Any], model: object) -> str:
    """Return the last two lines of a run, for people. summary.json has the details.

    Args:
        summary: the content of summary.json.
        model: the folder of the exported model.
    """
    parts = [f"{summary['seconds']['wall']:.1f} s"]
    for unit in UNITS:
        if f"{unit}_per_second" in summary:
            parts.append(f"{summary[f'{unit}_per_second']:,.0f} {unit.replace('_', ' ')}/s")
    if "mfu" in summary:
        parts.append(f"MFU {summary['mfu']:.1%}")
    parts.append(f"peak memory {size(max(summary['peak_memory_bytes']))}")
    return f"{_end_text(summary)}\n{', '.join(parts)}; model: {model}"


def _end_text(summary: Mapping[str, Any]) -> str:
    """Say how far training came, and its results."""
    steps = summary["steps"]
    total_steps = summary["total_steps"]
    if steps >= total_steps:
        end = f"done: {steps} steps"
    else:
        end = f"stopped at step {steps} of {total_steps}"
        if summary.get("stopped_by"):
            end += f" ({summary['stopped_by']})"

    results = metrics_text(summary["evaluation"])
    best = summary.get("best")
    if best is not None:
        results += f", best {best['metric']} {best['value']:.4f} at step {best['step']}"

    text = f"{end}, {summary['samples']:,} samples"
    return f"{text}, {results}" if results else text
