"""Optimizers that cannot step parts of parameters."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fake_run import fake_run
from plans import plan, request

from trainer import ConfigError, Task
from trainer.checks.optimizer import DivisibleOptimizer


class Own(Task):
    """A task with an optimizer of its own."""

    def build_optimizer(self, model: object, plan: object) -> torch.optim.Optimizer:
        raise NotImplementedError


def check(problem: str, task: Task) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    strategy = SimpleNamespace(
        optimizer_problem=lambda given: problem if given is optimizer else "another optimizer"
    )
    run = fake_run(strategy=strategy, plan=plan(request("zero2")), task=task)
    DivisibleOptimizer().on_optimizer(run, optimizer)


def test_an_optimizer_that_the_strategy_can_step_passes() -> None:
    check("", Task())


@pytest.mark.parametrize(
    ("task", "named"), [(Task(), "optimizer: 'adamw': "), (Own(), "Own.build_optimizer: 'SGD': ")]
)
def test_another_one_is_refused_with_the_place_to_change(task: Task, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        check("it sees parts of the parameters", task)
    assert "it sees parts of the parameters" in str(error.value)
    assert named in str(error.value)
