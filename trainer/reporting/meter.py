"""Time of a run, and its memory by phases. Nothing here waits for the device within a step; a pause
does.
"""

from __future__ import annotations

import contextlib
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import psutil
import torch

from ..text import metrics_text, size
from .memory import PeakMemory
from .speed import UNITS, Speed

T = TypeVar("T")


class Meter:
    """Clocks of this rank. Evaluation and saving are not part of the training speed."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.memory = device, PeakMemory(device)
        self.born = time.perf_counter() - (time.time() - psutil.Process().create_time())
        self.spent: dict[str, float] = defaultdict(float)  # apart from training
        self.within: dict[str, float] = defaultdict(float)  # parts of training
        self.events: list[tuple[str, Any, Any]] = []
        self.started = self.since = self.born
        self.total_samples = self.samples = self.steps = 0
        self.total_tokens = self.tokens = 0.0
        self.before = {"tokens": 0.0, "seconds": 0.0}  # in the processes that this one goes on from
        self.away = 0.0
        # Eight bytes each: a run of months logs some millions.
        self.readings = {unit: array("d") for unit in UNITS}
        self._has_read = False
        self._apart, self._moves = "", 0

    @property
    def position(self) -> tuple[str, int]:
        """Return what goes on now, and a number that grows as the run goes on. Any thread may read
        it.
        """
        return self._apart or self.memory.phase, self._moves

    def _move(self, apart: str = "") -> None:
        self._apart, self._moves = apart, self._moves + 1

    @property
    def seconds(self) -> float:
        """Return the time since the start of the process."""
        return time.perf_counter() - self.born

    def start(self, samples: int) -> None:
        """Begin training: what came before, from the start of the process, was start-up."""
        self.spent["start-up"] = self.seconds
        self.started = self.since = time.perf_counter()
        self.away = 0.0
        self.memory.enter("training")

    def step(self, samples: int) -> None:
        """Count an optimizer step over ``samples`` samples."""
        self.samples += samples
        self.total_samples += samples
        self.steps += 1

    def count(self, tokens: float) -> None:
        """Count the tokens of a step, over all ranks; never called where examples are what counts."""
        self.tokens += tokens
        self.total_tokens += tokens

    def until_now(self) -> dict[str, float]:
        """Return tokens and seconds from the run's start until now, whatever process it was;
        start-up counts.
        """
        seconds = round(self.before["seconds"] + self.seconds, 3)
        return {"tokens": self.before["tokens"] + self.total_tokens, "seconds": seconds}

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Count the time inside for ``name`` instead of training, and the memory; a GPU ends the
        steps before first.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        begin, around = time.perf_counter(), self.memory.enter(name)
        self._move()
        yield
        self._move()
        self.memory.enter(around)
        self.lasted = time.perf_counter() - begin
        self.spent[name] += self.lasted
        self.away += self.lasted

    def waiting(self, name: str, source: Iterable[T]) -> Iterator[T]:
        """Yield the same items; the time until each arrives counts for ``name`` within training."""
        items = iter(source)
        while True:
            begin = time.perf_counter()
            self._move(name)
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self._move()
            self.within[name] += time.perf_counter() - begin
            yield item

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside for a part of training; on a GPU from event to event, read when a
        step is logged.
        """
        if self.device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            yield
            end.record()
            self.events.append((name, begin, end))
            return
        begin_at = time.perf_counter()
        yield
        self.within[name] += time.perf_counter() - begin_at

    def read(self, steps_left: int) -> dict[str, float]:
        """Return the speed since the last reading (samples of all ranks), seconds left, this rank's
        peak memory.
        """
        now = time.perf_counter()
        busy = max(now - self.since - self.away, 1e-9)
        values = {
            "samples_per_second": round(self.samples / busy, 3),
            **({"tokens_per_second": round(self.tokens / busy, 1)} if self.tokens else {}),
            "seconds": round(now - self.started, 3),
            "eta_seconds": round(busy / max(1, self.steps) * steps_left, 1),
            "peak_memory_bytes": self.memory.read(),
        }
        self._keep_reading(values)
        self.since, self.away, self.samples, self.steps, self.tokens = now, 0.0, 0, 0, 0.0
        self._settle()
        return values

    def _keep_reading(self, values: Mapping[str, float]) -> None:
        """Keep a reading, but for the first one of the process, which holds what is paid once."""
        if self._has_read:
            for unit, readings in self.readings.items():
                value = values.get(f"{unit}_per_second")
                if value:
                    readings.append(value)
        self._has_read = True

    def _settle(self) -> None:
        done = [(name, begin, end) for name, begin, end in self.events if end.query()]
        for name, begin, end in done:
            self.within[name] += begin.elapsed_time(end) / 1e3
        self.events = self.events[len(done) :]

    def summary(
        self, gather: Callable[[Any], list[Any]], operations: float, world_size: int, precision: str
    ) -> dict[str, Any]:
        """Return where the time went, in seconds of this process, and the peak memory of every
        rank. Collective.

        Args:
            gather: collects a value of every rank.
            operations: floating-point operations a token, forward and backward.
            precision: what layers compute in: ``fp32``, ``bf16`` or ``fp16``.
        """
        wall = self.seconds
        training = max(wall - sum(self.spent.values()), 1e-9)
        self._settle()
        rest = max(training - sum(self.within.values()), 0.0)
        seconds = {
            **self.spent,
            **self.within,
            "forward and backward": rest,
            "training": training,
            "wall": wall,
        }
        found: dict[str, Any] = {
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            **self._speed("samples", self.total_samples / training).as_dict("samples"),
            "peak_memory_bytes": gather(self.memory.read()),
            "memory": self._memory_of_phases(gather(self.memory.peaks)),
        }
        if self.total_tokens:
            speed = self._speed("tokens", self.total_tokens / training)
            found |= speed.as_dict("tokens")
            found |= self._utilisation(operations * speed.median / world_size, precision)
        return found

    def _speed(self, unit: str, overall: float) -> Speed:
        """Return the speed in steady state; the overall one where too little was logged to know it."""
        nothing = Speed(median=overall, low=overall, high=overall, readings=0)
        return Speed.of_readings(self.readings[unit]) or nothing

    def _memory_of_phases(
        self, ranks: list[dict[str, dict[str, int]]]
    ) -> dict[str, dict[str, list[int]]]:
        """Turn ``PeakMemory.peaks`` of all ranks into bytes of every rank, by phase and measure."""
        return {
            phase: {
                name: [one[phase][name] for one in ranks if name in one.get(phase, ())]
                for name in measures
            }
            for phase, measures in self.memory.peaks.items()
        }

    def _utilisation(self, operations_per_second: float, precision: str) -> dict[str, float]:
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
    """Return the last lines of a run, for people."""
    seconds = dict(summary["seconds"])
    wall, training = seconds.pop("wall"), seconds.pop("training")
    inside = [name for name in ("data", "forward and backward", "optimizer") if name in seconds]
    parts = ", ".join(f"{name} {seconds.pop(name):.1f}" for name in inside)
    others = ", ".join(f"{name} {spent:.1f} s" for name, spent in sorted(seconds.items()))
    results = metrics_text(summary["evaluation"])
    best = summary.get("best")
    if best is not None:
        results += f", best {best['metric']} {best['value']:.4f} at step {best['step']}"
    speeds = [(unit, Speed.of_summary(summary, unit)) for unit in UNITS]
    speed = ", ".join(one.text(unit) for unit, one in speeds if one is not None)
    if not summary.get("readings_of_speed"):
        speed += " (the first step included)"
    if "mfu" in summary:
        speed += f", MFU {summary['mfu']:.1%} (6 operations a parameter and token)"
    done = summary["steps"] >= summary["total_steps"]
    cause = f" ({summary['stopped_by']})" if summary.get("stopped_by") else ""
    early = f"stopped at step {summary['steps']} of {summary['total_steps']}{cause}"
    end = f"done: {summary['steps']} steps" if done else early
    peaks: dict[str, list[str]] = {}
    for phase, measures in summary["memory"].items():
        for name, counts in measures.items():
            peaks.setdefault(name, []).append(f"{phase} {size(max(counts))}")
    shown = "; ".join(f"{name}: {', '.join(phases)}" for name, phases in peaks.items())
    return "\n".join(
        [
            f"{end}, {summary['samples']:,} samples" + (f", {results}" if results else ""),
            f"wall time {wall:.1f} s: training {training:.1f} s ({parts}), {others}; {speed}",
            *([account_text(summary["attempts"])] if "attempts" in summary else []),
            f"peak memory of the largest rank, {shown}",
            f"model: {model}",
        ]
    )


def account_text(account: Mapping[str, Any]) -> str:
    """Return the account of all attempts as a line for people."""
    wall, count = account["wall_seconds"], account["count"]
    shown = sorted(account["seconds"].items(), key=lambda part: -part[1])
    parts = ", ".join(f"{name} {spent / wall:.1%}" for name, spent in shown if spent > 0)
    return f"goodput {account['goodput']:.1%} of {wall:.1f} s in {count} attempt{'s' * (count > 1)}: {parts}"
