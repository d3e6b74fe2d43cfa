"""Losses that jump far above those before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..hooks import Callback, StepInfo
from ..run import Run


class LossSpikes(Callback):
    """Looks for logged losses far above the running mean, and warns, or fails before one is saved.

    A run that failed continues by ``resume: auto`` from the checkpoint before the spike; lower the
    rate for it, or filter the data, since the same samples follow.

    Args:
        deviations: how many running standard deviations above the mean a spike is.
        fail: end the run with an error; otherwise a line reports it.
        memory: logged losses over which mean and deviation are taken, and that come before the
            first one is judged.
    """

    def __init__(self, *, deviations: float = 6.0, fail: bool = False, memory: int = 20) -> None:
        self.deviations, self.fail, self.memory = deviations, fail, memory
        self.count = 0
        self.mean = 0.0
        self.square = 0.0

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Judge a logged loss, which is the same on every rank."""
        if info.metrics is None or not math.isfinite(info.metrics["loss"]):
            return

        loss = info.metrics["loss"]
        deviation = math.sqrt(max(0.0, self.square - self.mean**2))
        is_spike = loss > self.mean + self.deviations * deviation
        if self.count >= self.memory and is_spike:
            before = f"{self.mean:.4g} +- {deviation:.2g} before"
            text = f"step {info.step}: the loss {loss:.4g} is a spike: {before}"
            if self.fail:
                run.fail(text)
            run.say(f"note: {text}")
            return

        self.count += 1
        weight = 1 / min(self.count, self.memory)
        self.mean += weight * (loss - self.mean)
        self.square += weight * (loss**2 - self.square)

    def state_dict(self) -> Mapping[str, Any]:
        """Return what the next loss is judged by."""
        return {"count": self.count, "mean": self.mean, "square": self.square}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take that back."""
        self.count = int(state["count"])
        self.mean = float(state["mean"])
        self.square = float(state["square"])
