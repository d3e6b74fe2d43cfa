"""Trial steps on small tensors."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from plans import plan, request
from torch import nn
from torch.optim import SGD

from trainer import Task
from trainer.checkpoint.optimizer_state import OptimizerForm
from trainer.strategies.first_step import stepped_copy
from trainer.strategies.optimizer_probe import divided_step_problem

CPU = torch.device("cpu")
OFF = "a step on them is not that on the whole: in a trial it is off by"


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(4))]


class Failing(SGD):
    def step(self, closure: Any = None) -> Any:
        raise ValueError("not today")


class Lost(SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.fill_(float("nan"))


@pytest.mark.parametrize(
    ("name", "settings", "slots"),
    [
        ("adamw", {}, 2),
        ("sgd", {}, 1),
        ("torch.optim.SGD", {}, 0),
        ("torch.optim.AdamW", {"amsgrad": True}, 3),
        ("torch.optim.RMSprop", {}, 1),
        ("own_optimizers.Lion", {}, 1),
        ("torch.optim.LBFGS", {}, 0),  # cannot be tried
    ],
)
def test_state_is_counted_in_tensors_of_the_parameters_size(
    name: str, settings: dict[str, Any], slots: int
) -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    made = plan(optimizer=name, **({"optimizer_settings": settings} if settings else {}))
    optimizer = Task().build_optimizer(model, made)
    form = OptimizerForm.of(model, optimizer, saved=False, device=CPU)
    assert len(form.ranges) == slots


@pytest.mark.parametrize(
    ("name", "settings", "told"),
    [
        ("adamw", {}, ""),
        ("torch.optim.RMSprop", {"centered": True, "momentum": 0.9}, ""),
        ("torch.optim.Adagrad", {}, "creates its state before its first step"),
        ("torch.optim.Adafactor", {}, OFF),
        ("own_optimizers.Lion", {}, ""),
        ("own_optimizers.Lamb", {"trust": 0.1}, OFF),
        ("own_optimizers.Clipping", {}, OFF),
        ("own_optimizers.LateTrust", {}, OFF),
        ("own_optimizers.OfLarge", {"above": 100, "dimensions": 2}, OFF),
        ("own_optimizers.OfLarge", {"above": 4096, "dimensions": 4}, OFF),
        ("own_optimizers.Estimating", {}, "the optimizer computes 'd' from whole parameters"),
    ],
)
def test_whether_parts_can_be_stepped_is_tried_out(
    name: str, settings: dict[str, Any], told: str
) -> None:
    more = {"optimizer_settings": settings} if settings else {}
    made = plan(request("zero2"), optimizer=name, lr=1e-6, **more)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Conv2d(1, 1, 2))
    weights = copy.deepcopy(model.state_dict())
    optimizer = Task().build_optimizer(model, made)
    before = copy.deepcopy(optimizer.state_dict())
    problem = divided_step_problem(optimizer, CPU)
    assert told in problem and bool(problem) == bool(told)
    assert str(optimizer.state_dict()) == str(before)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize(
    "name",
    ["Adadelta", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"],
)
def test_classes_of_torch_that_compute_element_by_element_pass_the_trial(name: str) -> None:
    optimizer = getattr(torch.optim, name)(parameters(), lr=1e-3)
    assert divided_step_problem(optimizer, CPU) == ""


def test_hooks_on_the_step_are_refused_and_not_called() -> None:
    optimizer = torch.optim.AdamW(parameters(), lr=0.1)
    calls: list[object] = []
    optimizer.register_step_post_hook(lambda *given: calls.append(given))
    problem = divided_step_problem(optimizer, CPU)
    assert "hooks on its step cannot be tried: override step instead" in problem
    stepped_copy(optimizer, CPU)
    assert not calls


def test_parameters_outside_of_the_groups_are_refused() -> None:
    optimizer: Any = SGD(parameters(), lr=0.1)
    optimizer.clipped = {"all": parameters()}
    problem = divided_step_problem(optimizer, CPU)
    assert problem.startswith("the optimizer keeps parameters outside of its groups")


def test_a_failing_step_and_no_number_are_refused() -> None:
    problem = divided_step_problem(Failing(parameters(), lr=0.1), CPU)
    assert problem == "a trial step fails (ValueError: not today)"
    assert "off by nan" in divided_step_problem(Lost(parameters(), lr=0.1), CPU)
