"""Models that a callback left in evaluation mode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from from_launcher import configured
from torch import nn

from trainer import Callback, Run, StepInfo, Trainer
from trainer.strategies.tensors import unwrapped


@dataclass(frozen=True, kw_only=True)
class Held(Plain):
    """A model with a layer that build_model put into evaluation mode; it notes both modes."""

    modes: list[tuple[bool, bool]] = field(default_factory=list, compare=False)

    def build_model(self) -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 1), nn.BatchNorm1d(1))
        model[1].eval()
        return model

    def training_step(self, model: Any, batch: Any) -> Any:
        if torch.is_grad_enabled():
            self.modes.append((model.training, model[1].training))
        return super().training_step(model, batch)


class Evaluates(Callback):
    """Measures something, and forgets to put the model back into training mode."""

    def __init__(self, *, wrapped: bool) -> None:
        self.wrapped = wrapped

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        model = trainer.model if self.wrapped else unwrapped(trainer.model)
        model.eval()


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("wrapped", [True, False])
def test_the_next_step_trains_again_except_for_layers_held_in_evaluation(
    wrapped: bool, tmp_path: Path
) -> None:
    task, config = Held(), replace(configured(tmp_path), max_steps=5, keep_last=0)
    Trainer(task, config, callbacks=[Evaluates(wrapped=wrapped)]).fit()
    assert task.modes == [(True, False)] * 5


@pytest.mark.usefixtures("fresh_accelerate")
def test_without_checks_the_model_stays_as_the_callback_left_it(tmp_path: Path) -> None:
    task, config = Held(), replace(configured(tmp_path), max_steps=3, keep_last=0)
    Trainer(task, replace(config, checks="none"), callbacks=[Evaluates(wrapped=True)]).fit()
    assert task.modes == [(True, False), (False, False), (False, False)]
