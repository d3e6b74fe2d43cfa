"""The optimizers of a config: which parameters decay, fused kernels, and classes by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plans import plan, refusal
from torch import nn

from trainer import Task


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_norms_and_biases_do_not_decay_and_kernels_are_fused_where_they_are(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LazyLinear(3))
    model(torch.ones(1, 1, 4, 4))
    model[0].bias.requires_grad_(False)
    optimizer = Task().build_optimizer(model, plan(optimizer=name, weight_decay=0.3))
    decays = {
        id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]
    }
    named = {key: decays.get(id(p)) for key, p in model.named_parameters()}
    assert named == {
        "0.weight": 0.3,
        "0.bias": None,
        "1.weight": 0,
        "1.bias": 0,
        "3.weight": 0.3,
        "3.bias": 0,
    }
    assert all(group["fused"] == (name != "sgd") for group in optimizer.param_groups)


@pytest.mark.parametrize("name", ["adamw", "sgd", "torch.optim.NAdam"])
def test_without_decay_one_group_is_one_call_of_the_kernel(name: str) -> None:
    optimizer = Task().build_optimizer(nn.Linear(2, 3), plan(optimizer=name, weight_decay=0))
    assert [(group["weight_decay"], len(group["params"])) for group in optimizer.param_groups] == [
        (0, 2)
    ]


def test_complex_parameters_have_no_fused_kernel() -> None:
    model = nn.ParameterList([torch.ones(2, 2, dtype=torch.complex64), torch.ones(2, 2)])
    optimizer = Task().build_optimizer(model, plan())
    for parameter in model:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(bool((parameter.abs() < 1).all()) for parameter in model)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"optimizer": "torch.optim.NAdm"},
            "__init__.py has no Optimizer 'NAdm'; did you mean 'NAdam'",
        ),
        ({"optimizer": "own_optimizers:Lamb"}, "required keyword-only argument: 'trust'"),
        (
            {"optimizer": "torch.optim.Muon"},
            "does not take these: Muon only supports 2D parameters",
        ),
        ({"optimizer": "torch.optim.Muon"}, "; or take optimizer: muon"),
        (
            {"optimizer": "torch.optim.NAdam", "optimizer_settings": {"weight_decay": 1.0}},
            "optimizer_settings.weight_decay: 1.0: is the config's weight_decay; remove it",
        ),
        (
            {"optimizer": "torch.optim.Rprop", "weight_decay": 0.1},
            "unexpected keyword argument 'weight_decay'",
        ),
    ],
)
def test_mistakes_with_classes_are_one_line(settings: dict[str, Any], told: str) -> None:
    [line] = refusal(lambda: plan(**settings)).splitlines()
    assert told in line


def test_a_class_is_built_with_its_settings_and_the_configs_rate_and_decay() -> None:
    made = plan(
        optimizer="own_optimizers:Lion",
        optimizer_settings={"betas": [0.8, 0.9]},
        lr=0.2,
        weight_decay=0.3,
    )
    assert made.optimizer_settings == {"betas": [0.8, 0.9], "weight_decay": 0.3}
    optimizer = Task().build_optimizer(nn.Linear(3, 2), made)
    assert [
        (type(optimizer).__name__, g["lr"], g["betas"], g["weight_decay"])
        for g in optimizer.param_groups
    ] == [("Lion", 0.2, (0.8, 0.9), decay) for decay in (0.3, 0.0)]
    assert "weight_decay" not in plan(optimizer="torch.optim.Rprop").optimizer_settings
