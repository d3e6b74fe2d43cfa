"""The optimizers of a config: which parameters decay, and the fused kernels where torch has them."""

from __future__ import annotations

import pytest
import torch
from plans import plan
from torch import nn

from trainer import Task


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_norms_and_biases_do_not_decay_and_kernels_are_fused_where_they_are(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LazyLinear(3))
    model(torch.ones(1, 1, 4, 4))
    model[0].bias.requires_grad_(False)
    optimizer = Task().build_optimizer(model, plan(optimizer=name, weight_decay=0.3))
    decays = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    named = {key: decays.get(id(p)) for key, p in model.named_parameters()}
    assert named == {"0.weight": 0.3, "0.bias": None, "1.weight": 0, "1.bias": 0, "3.weight": 0.3, "3.bias": 0}
    assert all(group["fused"] == (name != "sgd") for group in optimizer.param_groups)


def test_complex_parameters_have_no_fused_kernel() -> None:
    model = nn.ParameterList([torch.ones(2, 2, dtype=torch.complex64), torch.ones(2, 2)])
    optimizer = Task().build_optimizer(model, plan())
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(bool((parameter.abs() < 1).all()) for parameter in model)
