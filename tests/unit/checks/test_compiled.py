"""A model that is to be compiled, and of which nothing was, ends the run on every rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from fake_run import TwoRanks, fake_run, step_info
from from_launcher import configured
from torch import nn

from trainer import Trainer
from trainer.checks.compiled import CompiledGraphs
from trainer.errors import LaunchError
from trainer.private.transformers import mark_sharded
from trainer.strategies.base import StepResult
from trainer.strategies.compiled import remember_settings

STEP = step_info(update=StepResult(grad_norm=torch.tensor(1.0)))


def compiled_model() -> nn.Module:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    remember_settings(model, {"backend": "eager"})
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def run_of(model: nn.Module, other: Any = lambda count: count, compiled: bool = True) -> Any:
    plan = SimpleNamespace(compile=compiled)
    return fake_run(model=model, plan=plan, agreement=TwoRanks(other))


def test_graphs_are_said_once_and_are_in_the_summary() -> None:
    model, check = compiled_model(), CompiledGraphs()
    model(torch.ones(1, 2))
    run = run_of(model)
    for _ in range(3):
        check.on_step(run, STEP)
    assert run.said == ["compile: 1 graph of the model in the first step on each rank"]
    assert check.summary() == {"compiled_graphs": [1, 1]} and run.agreement.sent == 1


def test_a_model_that_torch_skips_ends_the_run() -> None:
    """As every model under FSDP2 was skipped, by the mark of transformers without its companion."""
    model = compiled_model()
    mark_sharded(model)
    model._fsdp_use_orig_params = False  # type: ignore[assignment]
    model(torch.ones(1, 2))
    with pytest.raises(LaunchError, match=r"0 graphs .* on rank 0, 1: .* compile: false"):
        CompiledGraphs().on_step(run_of(model), STEP)


def test_one_rank_that_compiles_nothing_ends_all() -> None:
    model = compiled_model()
    model(torch.ones(1, 2))
    with pytest.raises(LaunchError, match="on rank 1: "):
        CompiledGraphs().on_step(run_of(model, other=lambda _: 0), STEP)


def test_nothing_is_asked_without_compile_or_a_step() -> None:
    for compiled, info in ((False, STEP), (True, step_info())):
        check, run = CompiledGraphs(), run_of(compiled_model(), compiled=compiled)
        check.on_step(run, info)
        assert run.agreement.sent == 0 and run.said == [] and check.summary() == {}


@dataclass(frozen=True, kw_only=True)
class Skips(Plain):
    """A model that torch.compile skips."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        mark_sharded(model)
        model._fsdp_use_orig_params = False  # type: ignore[assignment]
        return model


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # inductor, when imported
@pytest.mark.usefixtures("fresh_accelerate")
def test_a_training_in_which_nothing_is_compiled_ends_behind_its_first_step(
    tmp_path: Path,
) -> None:
    config = replace(configured(tmp_path), max_steps=5, keep_last=0, compile=True)
    training = Trainer(Skips(), config)
    assert training.run.plan.compile
    with pytest.raises(LaunchError, match="0 graphs of the model were compiled on rank 0"):
        training.fit()
    assert training.run.step == 1
