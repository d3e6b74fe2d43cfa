"""The CNN of the example without kinks: rounding stays rounding."""

from __future__ import annotations

from dataclasses import dataclass

from digits_cnn import DigitsCNN
from torch import nn


@dataclass(frozen=True, kw_only=True)
class SmoothCNN(DigitsCNN):
    """SiLU for ReLU, the mean of four pixels for their maximum."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        assert isinstance(model, nn.Sequential)
        for number, layer in enumerate(model):
            if isinstance(layer, nn.ReLU):
                model[number] = nn.SiLU()
            if isinstance(layer, nn.MaxPool2d):
                model[number] = nn.AvgPool2d(2)
        return model
