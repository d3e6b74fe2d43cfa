"""A block that tries something out on a model and changes nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from trainer.building.trial import unchanged
from trainer.data import rng


@pytest.mark.parametrize("compiled", [False, True])
def test_generators_buffers_and_modes_are_restored(compiled: bool) -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(), nn.Linear(2, 2))
    model.train()
    model[0].eval()
    states = rng.read()
    mean = model[0].running_mean.clone()

    with unchanged(model, compiled=compiled):
        model.train()
        model(torch.randn(4, 2))
        random.random()
        np.random.random()
        assert not torch.equal(model[0].running_mean, mean)

    assert torch.equal(model[0].running_mean, mean)
    assert [module.training for module in model] == [False, True, True]
    after = rng.read()
    assert all(
        torch.equal(states[name].view(torch.uint8), after[name].view(torch.uint8))
        for name in states
    )


def test_a_compiled_model_is_not_compiled_in_it() -> None:
    compiled = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        compiled.append([tuple(value.shape) for value in inputs])
        return graph.forward

    class Doubling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    model = Doubling()
    model.compile(backend=backend)
    with unchanged(model, compiled=True), torch.no_grad():
        model(torch.ones(4, 2))
    assert compiled == []
    model(torch.ones(3, 2))
    assert compiled == [[(3, 2)]], "for the shape of the training"
