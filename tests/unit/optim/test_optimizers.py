"""The optimizers of a config: which parameters decay, fused kernels, classes by name, and what may
be cut.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plans import plan, refusal, request
from torch import nn

from trainer import ConfigError, Task
from trainer.optim.optimizers import MatricesAndOthers
from trainer.strategies import strategy_class
from trainer.strategies.optimizer_probe import state_slots


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
            {"optimizer": "torch.optim.Muonn"},
            "optimizer: 'torch.optim.Muonn': torch.optim has no such optimizer; did you",
        ),
        (
            {"optimizer": "torch.optm:Muon"},
            "torch.optm cannot be imported: ModuleNotFoundError: No module named 'torch.o",
        ),
        (
            {"optimizer": "no_such_lion.Lion"},
            "no package no_such_lion is installed here; pip install the one that has it",
        ),
        ({"optimizer": "torch.nn.Linear"}, "Linear of torch.nn is no torch.optim.Optimizer"),
        (
            {"optimizer": "own_optimizers.Rateless"},
            "takes no lr, which the schedule moves; take another one",
        ),
        (
            {"optimizer": "torch.optim.Adafactor", "optimizer_settings": {"beta2_deca": -0.9}},
            "optimizer_settings.beta2_deca: -0.9: torch.optim.Adafactor has no such argument; did you mean 'beta2_",
        ),
        (
            {"optimizer": "torch.optim.Adagrad", "optimizer_settings": {"lr": 1.0}},
            "optimizer_settings.lr: 1.0: is the config's lr; remove it",
        ),
        (
            {"optimizer": "own_optimizers:Lamb"},
            "optimizer_settings.trust: is required by own_optimizers:Lamb",
        ),
        (
            {"optimizer": "torch.optim.RMSprop", "optimizer_settings": {"alpha": -1}},
            "torch.optim.RMSprop does not take these: Invalid alpha value: -1",
        ),
        (
            {"optimizer": "torch.optim.Rprop", "weight_decay": 0.1},
            "weight_decay: 0.1: torch.optim.Rprop has no such arg",
        ),
        (
            {"optimizer": "torch.optim.NAdam", "optimizer_settings": {"adamw": {"eps": 1e-6}}},
            "optimizer_settings.adamw: {'eps': 1e-06}: has no effect: torch.optim.NAdam takes all parameters; remove",
        ),
        (
            {"optimizer": "torch.optim.Muon", "optimizer_settings": {"adamw": {"epsilon": 1e-6}}},
            "AdamW does not take these: AdamW.__init__() got an unexpected keyword argument 'epsilon'",
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


class Tagged(nn.Module):
    """A table of words, two matrices, a vector, and a head as transformers models name it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.norm = nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4)
        self.head = nn.Linear(4, 5, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def test_a_class_for_matrices_leaves_embeddings_head_and_vectors_to_adamw() -> None:
    model = Tagged()
    settings = {"ns_steps": 3, "adamw": {"lr": 0.02, "betas": [0.8, 0.9]}}
    made = plan(
        optimizer="torch.optim.Muon",
        optimizer_settings=settings,
        lr=0.1,
        lr_scaling="linear",
        micro_batch_size=2,
        reference_batch_size=2,
    )
    optimizer = Task().build_optimizer(model, made)
    assert isinstance(optimizer, MatricesAndOthers)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = [
        ([names[id(p)] for p in g["params"]], g["stepped_by"], g["lr"])
        for g in optimizer.param_groups
    ]
    assert groups == [
        (["inner.weight"], "Muon", 0.2),
        (["words.weight", "head.weight"], "AdamW", 0.04),
        (["inner.bias", "norm.weight", "norm.bias"], "AdamW", 0.04),
    ]
    assert "Muon steps 1 matrices; AdamW the 5 others" in optimizer.notice
    alone = copy.deepcopy(model)
    muon = torch.optim.Muon([alone.inner.weight], lr=0.2, ns_steps=3, weight_decay=0.01)
    for step in range(2):
        for p, q in zip(model.parameters(), alone.parameters(), strict=True):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
            q.grad = p.grad.clone()
        optimizer.step()
        muon.step()
    torch.testing.assert_close(model.inner.weight, alone.inner.weight, rtol=0, atol=0)
    with pytest.raises(
        ConfigError, match="steps matrices only, and the model has no trainable ones but embeddings"
    ):
        Task().build_optimizer(nn.LayerNorm(3), made)
    assert [sorted(optimizer.state[p]) for p in (model.inner.weight, model.head.weight)] == [
        ["momentum_buffer"],
        ["exp_avg", "exp_avg_sq", "step"],
    ]


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("adamw", {}, ""),
        ("sgd", {}, ""),
        ("torch.optim.RMSprop", {"momentum": 0.9}, ""),
        ("own_optimizers.Lion", {}, ""),
        (
            "torch.optim.Muon",
            {},
            "a step on them fails (ValueError: Param gradient must be a 2D matrix)",
        ),
        (
            "torch.optim.Adafactor",
            {},
            "a step on them is not that on the whole: in a trial it is off by 0.",
        ),
        (
            "own_optimizers.Lamb",
            {"trust": 0.1},
            "a step on them is not that on the whole: in a trial it is off by 0.",
        ),
        (
            "own_optimizers.Clipping",
            {},
            "a step on them is not that on the whole: in a trial it is off by 0.",
        ),
        (
            "own_optimizers.LateTrust",
            {},
            "a step on them is not that on the whole: in a trial it is off by 0.",
        ),
        ("torch.optim.RMSprop", {"centered": True, "momentum": 0.9}, ""),
        ("torch.optim.NAdam", {}, ""),
        ("torch.optim.RAdam", {}, ""),
        ("torch.optim.Adamax", {}, ""),
        ("torch.optim.Adadelta", {}, ""),
        ("torch.optim.ASGD", {}, ""),
        ("torch.optim.Rprop", {}, ""),
        ("torch.optim.Adagrad", {}, ""),
        ("torch.optim.AdamW", {"amsgrad": True, "maximize": True, "foreach": False}, ""),
    ],
)
def test_whether_slices_can_be_stepped_is_tried_out(
    name: str, settings: dict[str, Any], told: str
) -> None:
    more = {"optimizer_settings": settings} if settings else {}
    made = plan(request("zero2"), optimizer=name, lr=1e-6, **more)
    accelerator: Any = SimpleNamespace(
        device=torch.device("cpu"), state=SimpleNamespace(deepspeed_plugin=SimpleNamespace())
    )
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Conv2d(1, 1, 2))
    before = copy.deepcopy(model.state_dict())
    optimizer = Task().build_optimizer(model, made)
    steps = [
        float(state["step"]) for state in optimizer.state.values()
    ]  # Adagrad's is there from the start
    problem = strategy_class("zero2")(made, accelerator).optimizer_problem(optimizer)
    assert told in problem and bool(problem) == bool(told)
    assert not any(steps) and [float(state["step"]) for state in optimizer.state.values()] == steps
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "settings", "slots"),
    [
        ("adamw", {}, 2),
        ("sgd", {}, 1),
        ("torch.optim.AdamW", {"amsgrad": True}, 3),
        ("torch.optim.RMSprop", {}, 1),
        ("own_optimizers.Lion", {}, 1),
        (
            "torch.optim.Muon",
            {},
            (16 * 1 + 52 * 2) / 68,
        ),  # one matrix of 4 x 4, and everything else
        ("torch.optim.LBFGS", {}, 0),  # cannot be tried
    ],
)
def test_what_an_optimizer_keeps_is_counted(
    name: str, settings: dict[str, Any], slots: float
) -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    made = plan(optimizer=name, **({"optimizer_settings": settings} if settings else {}))
    assert state_slots(Task().build_optimizer(model, made), torch.device("cpu")) == pytest.approx(
        slots
    )
