"""Time and memory of a run."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from .banner import size

if TYPE_CHECKING:
    from .loop import Trainer


class Meter:
    """Clocks of this rank. Evaluation and saving are not part of the training speed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.born = time.perf_counter()
        self.spent: dict[str, float] = defaultdict(float)
        self.started = self.since = self.born
        self.total_samples = self.samples = self.steps = 0
        self.away = 0.0

    def start(self, samples: int) -> None:
        """Training begins: what came before was start-up."""
        self.spent["start-up"] = time.perf_counter() - self.born
        self.started = self.since = time.perf_counter()
        self.away = 0.0

    def step(self, samples: int) -> None:
        """One optimizer step over ``samples`` samples was done."""
        self.samples += samples
        self.total_samples += samples
        self.steps += 1

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Time that counts for ``name`` instead of training."""
        begin = time.perf_counter()
        yield
        took = time.perf_counter() - begin
        self.spent[name] += took
        self.away += took

    def read(self, steps_left: int) -> dict[str, float]:
        """Speed since the last reading (samples of all ranks), seconds left, peak memory of this rank."""
        now = time.perf_counter()
        busy = max(now - self.since - self.away, 1e-9)
        values = {
            "samples_per_second": round(self.samples / busy, 3),
            "seconds": round(now - self.started, 3),
            "eta_seconds": round(busy / max(1, self.steps) * steps_left, 1),
            "peak_memory_bytes": peak_memory(self.device),
        }
        self.since, self.away, self.samples, self.steps = now, 0.0, 0, 0
        return values

    def summary(self, trainer: Trainer) -> str:
        """The last lines of a run."""
        wall = time.perf_counter() - self.born
        training = wall - sum(self.spent.values())
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in sorted(self.spent.items()))
        results = "  ".join(
            f"{name} {value:.4f}" for name, value in trainer.last_evaluation.items() if name.count("/") == 1
        )
        lines = [
            f"done: {trainer.step} steps, {trainer.samples:,} samples" + (f", {results}" if results else ""),
            f"wall time {wall:.1f} s (training {training:.1f} s, {parts}); "
            f"{self.total_samples / max(training, 1e-9):.0f} samples/s",
            f"peak memory {size(peak_memory(self.device))} on the main process",
            f"model: {trainer.directory.path / 'model'}",
        ]
        return "\n".join(lines)


def peak_memory(device: torch.device) -> int:
    """Peak bytes of this rank: the allocator's on a GPU, the process's resident set otherwise."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
