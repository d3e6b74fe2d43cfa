"""The exponential moving average of the weights, against averages computed by hand in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from torch import nn

from trainer import Task, TrainConfig, Trainer

DECAY = 0.9


def averaged_by_hand(weights: list[list[float]], decay: float) -> list[float]:
    """Average the weights of each step, the first ones being those before training."""
    average = list(weights[0])
    for step in weights[1:]:
        average = [decay * a + (1 - decay) * w for a, w in zip(average, step, strict=True)]
    return average


def trainer_of(task: Task, folder: Path) -> Trainer:
    config = TrainConfig(
        task="a:B",
        output_dir=str(folder / "run"),
        max_steps=4,
        lr=0.05,
        ema_decay=DECAY,
        on_nan="skip",
    )
    return Trainer(task, config)


def weights(trainer: Trainer) -> list[float]:
    return (
        torch.cat([p.detach().flatten() for p in trainer.run.model.parameters()]).double().tolist()
    )


def average_of(trainer: Trainer) -> list[float]:
    with trainer.run.average.applied():
        return weights(trainer)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_step_that_the_scaler_skipped_does_not_move_the_average(tmp_path: Path) -> None:
    trainer = trainer_of(Plain(), tmp_path)
    seen = [weights(trainer)]
    averages = [average_of(trainer)]
    for number, window in enumerate(trainer.run.windows(), 1):
        with torch.no_grad():
            for parameter in trainer.run.model.parameters():
                parameter.add_(torch.randn(parameter.shape))
        trainer.run.advance(window, skipped=number == 2)
        seen.append(weights(trainer))
        averages.append(average_of(trainer))

    assert averages[2] == averages[1]
    position = trainer.run.position
    assert (position.skipped_steps, position.skipped_in_a_row, position.samples) == (1, 0, 32)
    moved_with = [seen[0], seen[1], seen[3], seen[4]]
    assert averages[4] == pytest.approx(averaged_by_hand(moved_with, DECAY), rel=1e-6, abs=1e-6)


class NaNInSecondStep(Plain):
    steps = 0

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        self.steps += model.training  # not in the sanity evaluation
        loss = super().training_step(model, batch)
        return loss * float("nan") if model.training and self.steps == 2 else loss


def test_a_step_left_out_for_its_nan_moves_the_average_towards_the_weights(tmp_path: Path) -> None:
    """Its weights stay; the step counts, as docs/numbers.md says of ``on_nan: skip``."""
    trainer = trainer_of(NaNInSecondStep(), tmp_path)
    seen = [weights(trainer)]
    for _ in trainer.steps():
        seen.append(weights(trainer))

    assert seen[2] == seen[1]
    by_hand = averaged_by_hand(seen, DECAY)
    assert average_of(trainer) == pytest.approx(by_hand, rel=1e-6, abs=1e-6)
