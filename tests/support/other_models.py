"""Models that differ from those of the checkpoint."""

from __future__ import annotations

import torch
from resuming import Odd
from torch import nn


class Turned(Odd):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.middle.weight = nn.Parameter(torch.zeros(5, 3))
        return model


class Smaller(Odd):
    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.frozen = nn.Identity()
        del model.forwards
        model.forwards = 0
        return model
