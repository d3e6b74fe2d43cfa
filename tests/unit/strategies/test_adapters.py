"""Frozen parameters that adapters of experts set in each forward pass."""

from __future__ import annotations

import torch
from torch import nn

from trainer.strategies.adapters import set_by_adapters


class Experts(nn.Module):
    def __init__(self, *, trainable: bool) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.ones(2, 2), requires_grad=trainable)


class ParameterAdapter(nn.Module):
    """What peft's adapter of a parameter looks like."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base_layer = base
        self.parameter_name = "up"
        self.lora_A = nn.ModuleDict()

    def get_base_layer(self) -> nn.Module:
        return self.base_layer


def test_frozen_parameters_are_found_by_module_and_name() -> None:
    frozen, trainable = Experts(trainable=False), Experts(trainable=True)
    model = nn.Sequential(ParameterAdapter(frozen), ParameterAdapter(trainable), nn.Linear(2, 2))
    assert set_by_adapters(model) == {(id(frozen), "up"): frozen.up}


def test_a_model_without_adapters_has_none() -> None:
    assert set_by_adapters(nn.Linear(2, 2)) == {}
