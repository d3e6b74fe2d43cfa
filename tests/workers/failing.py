"""Tasks that go wrong on purpose; named on the command line as
``task=tests.workers.failing:Class``.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from digits_cnn import DigitsCNN
from torch import Tensor, nn

from trainer.distributed import signals

calls = 0


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


class ByRank(DigitsCNN):
    """Each rank has a loss of its own."""

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return super().training_step(model, batch) * (1 + int(os.environ.get("RANK", "0")))
