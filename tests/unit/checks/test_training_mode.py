"""Models that a callback left in evaluation mode."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from brought_tasks import Plain
from fake_run import fake_run
from from_launcher import configured
from torch import nn

from trainer import Callback, Run, StepInfo, Trainer
from trainer.checks.training_mode import TrainingMode
from trainer.data.batches import Window


@dataclass(frozen=True, kw_only=True)
class Held(Plain):
    """A model with a layer that stays in evaluation mode; it notes both modes."""

    modes: list[tuple[bool, bool]] = field(default_factory=list, compare=False)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 1), nn.BatchNorm1d(1))

    def held_in_evaluation(self, model: Any) -> list[nn.Module]:
        return [model[1]]

    def training_step(self, model: Any, batch: Any) -> Any:
        if torch.is_grad_enabled():
            self.modes.append((model.training, model[1].training))
        return super().training_step(model, batch)


class Evaluates(Callback):
    """Measures something, and forgets to put the model back into training mode."""

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        trainer.model.eval()


class DistributedDataParallel(nn.Module):
    """A wrapper by the name of torch's, which needs no processes."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@pytest.mark.parametrize(("checks", "later"), [("all", (True, False)), ("none", (False, False))])
def test_with_checks_the_next_step_trains_again_except_for_layers_held_in_evaluation(
    checks: str, later: tuple[bool, bool], tmp_path: Path
) -> None:
    task = Held()
    config = configured(tmp_path, max_steps=3, keep_last=0, checks=checks)
    Trainer(task, config, callbacks=[Evaluates()]).fit()
    assert task.modes == [(True, False), later, later]


def test_a_model_that_was_put_into_evaluation_mode_inside_its_wrapper_trains_again() -> None:
    wrapper = DistributedDataParallel(nn.Linear(2, 1))
    run, window = fake_run(model=wrapper, train_mode=wrapper.train), cast(Window, None)
    wrapper.module.eval()
    assert wrapper.training
    TrainingMode().on_window(run, window)
    assert wrapper.module.training
