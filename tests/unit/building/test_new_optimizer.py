"""The optimizer and the schedule of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plans import plan
from torch import nn

from trainer import Task, TrainConfig
from trainer.building.new_optimizer import build_no_optimizer, build_optimizer, build_schedule
from trainer.errors import ConfigError, LaunchError


class Trains(Task):
    """A task whose optimizer holds what a test gives it."""

    def __init__(self, *held: nn.Parameter) -> None:
        super().__init__()
        object.__setattr__(self, "held", held)

    def build_optimizer(self, model: nn.Module, plan: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.held, lr=plan.lr)


def test_parameters_that_the_optimizer_does_not_hold_are_frozen() -> None:
    model = nn.Linear(2, 1)
    config = TrainConfig(task="m:T", max_steps=4)
    _, facts, notices = build_optimizer(Trains(model.weight), config, model, plan())
    assert not model.bias.requires_grad and model.weight.requires_grad
    assert notices == ["not in the optimizer, so frozen, and in no gradient norm: bias"]
    assert [group["parameters"] for group in facts["optimizer_groups"]] == [2]


def test_a_parameter_that_is_not_the_models_is_refused() -> None:
    model = nn.Linear(2, 1)
    task = Trains(model.weight, nn.Parameter(torch.zeros(3)))
    config = TrainConfig(task="m:T", max_steps=4)
    with pytest.raises(LaunchError, match="a parameter that is not the model's"):
        build_optimizer(task, config, model, plan())


def test_a_schedule_of_the_tasks_own_may_stand_beside_null() -> None:
    """As a YAML says that it names none."""

    class Mine(Task):
        def build_schedule(self, optimizer: Any, plan: Any, total_steps: int) -> Any:
            return torch.optim.lr_scheduler.ConstantLR(optimizer)

    optimizer, config = (
        torch.optim.SGD([torch.zeros(1)], lr=1.0),
        TrainConfig(task="m:T", max_steps=4),
    )
    made = plan(schedule=None)
    assert str(made.origin("schedule")).startswith("train.yaml")
    assert type(build_schedule(Mine(), config, made, optimizer, 4)[0]).__name__ == "ConstantLR"
    named = TrainConfig(task="m:T", max_steps=4, schedule="cosine")
    with pytest.raises(ConfigError, match=r"builds the schedule already\. Remove one of the two"):
        build_schedule(Mine(), named, plan(schedule="cosine"), optimizer, 4)


def test_what_is_no_schedule_is_refused() -> None:
    class Mine(Task):
        def build_schedule(self, optimizer: Any, plan: Any, total_steps: int) -> Any:
            return SimpleNamespace()

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    config = TrainConfig(task="m:T", max_steps=4)
    told = "build_schedule must return: LRScheduler. It returned a SimpleNamespace"
    with pytest.raises(LaunchError, match=told):
        build_schedule(Mine(), config, plan(schedule=None), optimizer, 4)


def test_a_model_that_is_only_evaluated_trains_its_smallest_parameter_and_keeps_no_state() -> None:
    """Engines want a model and an optimizer that train something."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2), nn.Linear(2, 1))
    model[2].requires_grad_(False)
    optimizer, _, _ = build_no_optimizer(model)
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["1.bias"]
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert not optimizer.state
