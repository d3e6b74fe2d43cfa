"""Optimizers that cannot step parts of parameters, and rates that a schedule puts back."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from brought_tasks import Plain
from fake_run import fake_run
from from_launcher import configured
from one_process import log_of
from plans import plan, request
from torch import nn

from trainer import Callback, ConfigError, Run, StepInfo, Task, Trainer
from trainer.checks.optimizer import DivisibleOptimizer


class Own(Task):
    """A task with an optimizer of its own."""

    def build_optimizer(self, model: object, plan: object) -> torch.optim.Optimizer:
        raise NotImplementedError


def check(kind: type[torch.optim.Optimizer], task: Task) -> None:
    optimizer = kind([nn.Parameter(torch.zeros(1))], lr=0.1)  # type: ignore[call-arg]
    strategy = SimpleNamespace(held="slices", step_device=torch.device("cpu"))
    run = fake_run(strategy=strategy, plan=plan(request("zero2")), task=task)
    DivisibleOptimizer().on_optimizer(run, optimizer)


def test_an_optimizer_that_the_strategy_can_step_passes() -> None:
    check(torch.optim.SGD, Task())


@pytest.mark.parametrize(
    ("task", "named"),
    [(Task(), "optimizer: 'adamw': "), (Own(), "Own.build_optimizer: 'Adagrad': ")],
)
def test_another_one_is_refused_with_the_place_to_change(task: Task, named: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(torch.optim.Adagrad, task)
    assert "each process holds slices here, and the optimizer creates its state" in str(error.value)
    assert named in str(error.value)


class Setting(Callback):
    """Sets the rate to a tenth after some steps."""

    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def on_step(self, run: Run, info: StepInfo) -> None:
        if info.step in self.steps:
            run.strategy.optimizer.param_groups[0]["lr"] = 1e-4


@pytest.mark.parametrize(
    ("steps", "rates"), [((1,), [1e-3, 1e-4, 1e-3]), ((1, 2), [1e-3, 1e-4, 1e-4]), ((), [1e-3] * 3)]
)
def test_a_rate_that_a_callback_sets_is_told_and_logged_for_the_steps_that_have_it(
    steps: tuple[int, ...], rates: list[float], tmp_path: Path
) -> None:
    config = configured(tmp_path, lr=1e-3, schedule="constant", max_steps=3, log_every=1)
    Trainer(Plain(), config, callbacks=[Setting(*steps)]).fit()
    rows = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert [row["lr"] for row in rows if "lr" in row] == rates
    told = "a callback has set the learning rate 0.0001, for this step alone"
    assert log_of(tmp_path).count(told) == bool(steps)
