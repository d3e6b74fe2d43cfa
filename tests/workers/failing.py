"""Tasks that go wrong on purpose; named on the command line as
``task=tests.workers.failing:Class``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from trainer import Plan
from trainer.distributed import signals

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from digits_cnn import DigitsCNN

calls = 0


@dataclass(frozen=True, kw_only=True)
class FailsOnOneRank(DigitsCNN):
    """Raises on one rank in the middle of training; the others only see a lost connection."""

    bad_rank: int = 1

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        global calls
        calls += torch.is_grad_enabled()  # the trial of the loss is not counted
        if calls == 3 and int(os.environ.get("RANK", "0")) == self.bad_rank:
            raise RuntimeError(f"the cat sat on rank {self.bad_rank}")
        return super().training_step(model, batch)


@dataclass(frozen=True, kw_only=True)
class FailsBesideAStuckRank(DigitsCNN):
    """Rank 0 raises, and leaves rank 1 in a call of C that no signal interrupts, as a collective
    is.
    """

    patience: float = 10.0
    stamp: str = ""  # a file that is made at that moment

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        global calls
        calls += torch.is_grad_enabled()  # the trial of the loss is not counted
        if calls == 3 and os.environ["RANK"] == "0":
            Path(self.stamp).touch()
            raise RuntimeError("the cat sat on rank 0")
        if calls == 3:
            signals._PATIENCE_SECONDS = self.patience
            library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
            for _ in range(2):
                library.pthread_mutex_lock(
                    mutex
                )  # the second time for ever: as long as a collective
        return super().training_step(model, batch)


class Terminated(DigitsCNN):
    """One rank gets SIGTERM, as a scheduler sends it before it takes the machine away."""

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        global calls
        calls += torch.is_grad_enabled()  # the trial of the loss is not counted
        if calls == 3 and int(os.environ.get("RANK", "0")) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().training_step(model, batch)


@dataclass(frozen=True, kw_only=True)
class DiesOnce(DigitsCNN):
    """Rank 1 is killed in some micro-batch of the first attempt, as by a machine that goes down."""

    at: int = field(default=5, compare=False)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        global calls
        calls += torch.is_grad_enabled()  # the trial of the loss is not counted
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if calls == self.at and first and os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(model, batch)


class OwnOptimizer(DigitsCNN):
    """Builds its optimizer itself, beside one in a DeepSpeed JSON."""

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return SGD(model.parameters(), lr=plan.lr)


class ByRank(DigitsCNN):
    """Each rank has a loss of its own."""

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return super().training_step(model, batch) * (1 + int(os.environ.get("RANK", "0")))
