"""Schedules of the learning rate continue at the step of the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from one_process import checkpoint, fit, rows
from resuming import Odd
from torch.optim import Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LambdaLR,
    LRScheduler,
)

from trainer import Plan, Run


@pytest.mark.parametrize(
    "schedule",
    [
        {"schedule": "linear", "warmup_steps": 3},
        {
            "schedule": "torch:MultiStepLR",
            "schedule_settings": {"milestones": [3, 5], "gamma": 0.5},
        },
        {
            "schedule": "torch:CosineAnnealingLR",
            "schedule_settings": {"T_max": 8},
            "warmup_steps": 5,
        },
        {"schedule": "torch:OneCycleLR", "schedule_settings": {"max_lr": 0.1, "total_steps": 9}},
    ],
    ids=lambda schedule: schedule["schedule"],
)
def test_schedules_resume_at_their_step(
    schedule: dict[str, Any], goes_on: Callable[..., tuple[Run, Run]]
) -> None:
    goes_on(**schedule)


class Falling(LRScheduler):
    """Keeps its memory in a dictionary."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.memory = {"rate": {"factor": 1.0}}
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        self.memory["rate"]["factor"] *= 0.8
        return [rate * self.memory["rate"]["factor"] for rate in self.base_lrs]


class Before(LRScheduler):
    """Is constant for three steps, and then takes the rates of an inner schedule."""

    def __init__(self, optimizer: Optimizer, inner: LRScheduler) -> None:
        self.inner = inner
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        if self.last_epoch < 4:
            return list(self.base_lrs)
        self.inner.step()
        return self.inner.get_last_lr()


class Calls:
    """A rate by the number of calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, step: int) -> float:
        self.calls += 1
        return 1.0 / self.calls


@dataclass(frozen=True, kw_only=True)
class Own(Odd):
    """Has a schedule of its own."""

    kind: str

    def build_schedule(self, optimizer: Optimizer, plan: Plan, total_steps: int) -> LRScheduler:
        calls = Calls()
        halves = LambdaLR(optimizer, lambda step: 0.5**step)
        match self.kind:
            case "dictionary":
                return Falling(optimizer)
            case "inner function":
                return Before(optimizer, halves)
            case "inner cosine":
                return Before(optimizer, CosineAnnealingLR(optimizer, 9))
            case "chained":
                return ChainedScheduler([halves, ExponentialLR(optimizer, 0.9)])
            case "object":
                return LambdaLR(optimizer, calls)
            case _:
                return LambdaLR(optimizer, lambda step: calls(step))


@pytest.mark.parametrize(
    "kind", ["dictionary", "inner function", "inner cosine", "chained", "object", "closure"]
)
def test_a_schedule_of_ones_own_resumes_with_its_memory(
    kind: str, goes_on: Callable[..., tuple[Run, Run]], tmp_path: Path
) -> None:
    goes_on(Own(kind=kind))
    rates = [row["lr"] for row in rows(tmp_path / "run")]
    assert len({*rates}) > 3, "a constant rate shows nothing"


def test_another_schedule_takes_its_own_rate_at_that_step(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    resume = str(checkpoint(tmp_path / "run", 4))
    fit(tmp_path / "new", resume=resume, schedule="linear", allow_config_change=True)
    assert rows(tmp_path / "new")[0]["lr"] == pytest.approx(0.05 * (1 - 4 / 8))
