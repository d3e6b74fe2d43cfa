"""A small task for workers: rows that two ranks cannot share evenly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer import Data, Task

STEPS = 8
SETTINGS: dict[str, Any] = {
    "task": "uneven_task:Small",
    "max_steps": STEPS,
    "log_every": 1,
    "micro_batch_size": 4,
    "accumulation_steps": 2,
    "lr": 1e-2,
    "max_grad_norm": 0.5,
    "mixed_precision": "no",
}


@dataclass(frozen=True, kw_only=True)
class Small(Task):
    """Five rows and one row, which two ranks cannot share evenly."""

    def build_data(self) -> Data:
        drawn = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
        return Data(train=[{"x": row} for row in drawn])

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        loss: Tensor = (model(batch["x"]) - 1.0).square().mean()
        return loss
