"""Losses that are sums over the micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from from_launcher import configured
from one_process import rows
from torch import Tensor, nn
from torch.nn import functional as F

from trainer import LaunchError, TrainConfig, Trainer

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, kw_only=True)
class Losing(Plain):
    """Has the loss of a test, and keeps values between steps."""

    loss: Loss = field(compare=False)
    kept: dict[str, Any] = field(default_factory=dict, compare=False)

    def build_model(self) -> nn.Module:
        model = nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1).requires_grad_(False)])
        model.forward = lambda x: model[0](x).squeeze(-1)  # type: ignore[method-assign]
        return model

    def training_step(self, model: Any, batch: Any) -> Any:
        return self.loss(model, batch)

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        return {"at": batch["at"].double()}


def errors(model: Any, batch: Any) -> Tensor:
    return (model(batch["x"]) - batch["y"].squeeze(-1)).square()


def noisy(model: Any, batch: Any, spread: float = 0.1) -> Tensor:
    return errors(model, batch) * (1 + spread * torch.randn(len(batch["x"])))


def contrastive(model: Any, batch: Any) -> Tensor:
    x = model(batch["x"])
    return F.cross_entropy(1e-3 * torch.outer(x, x), torch.arange(len(x)))


def config_of(folder: Path, **settings: Any) -> TrainConfig:
    return replace(configured(folder), max_steps=2, **settings)


def train(folder: Path, task: Plain, **settings: Any) -> None:
    Trainer(task, config_of(folder, **settings)).fit()


@pytest.mark.parametrize(
    "loss",
    [
        lambda model, batch: errors(model, batch).sum(),
        lambda model, batch: noisy(model, batch).sum(),
        lambda model, batch: (errors(model, batch).sum() / 32, {"more": 1.0}),
    ],
    ids=["sum", "noisy", "scaled"],
)
def test_a_sum_is_refused_before_the_first_step(loss: Loss, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="training_step returns a sum over the micro-batch"):
        train(tmp_path, Losing(loss=loss))
    train(tmp_path / "skipped", Losing(loss=loss), sanity_evaluation=False)


class Weighted(Losing):
    """As a language model: the mean over some of the values, and some examples have none."""

    def weight(self, batch: Any) -> Tensor:
        return (batch["at"] % 4).sum()


def mean_by_weight(model: Any, batch: Any) -> Tensor:
    weights = batch["at"] % 4
    return (errors(model, batch) * weights).sum() / weights.sum()


@pytest.mark.parametrize(
    ("task", "micro_batch_size"),
    [
        (Losing(loss=lambda model, batch: errors(model, batch).mean()), 4),
        (Losing(loss=lambda model, batch: noisy(model, batch).mean()), 4),
        (Losing(loss=lambda model, batch: noisy(model, batch, 5.0).mean()), 8),
        (Losing(loss=contrastive), 4),
        (Losing(loss=contrastive), 8),
        (Losing(loss=lambda model, batch: errors(model, batch).sum()), 1),
        (Weighted(loss=mean_by_weight), 4),
    ],
    ids=["mean", "noise", "noisier", "contrastive 4", "contrastive 8", "one", "weighted"],
)
def test_other_losses_are_not_refused(task: Losing, micro_batch_size: int, tmp_path: Path) -> None:
    sizes = {"micro_batch_size": micro_batch_size, "global_batch_size": 8}
    train(tmp_path, task, **sizes, accumulation_steps=None)


def restless(model: Any, batch: Any) -> Tensor:
    """Change everything that a step can change."""
    with torch.no_grad():
        model[1].weight.mul_(0.9).add_(model[0].weight, alpha=0.1)
    batch["x"].add_(1.0)
    return (errors(model, batch) + 0.1 * model[1](batch["x"]).squeeze(-1)).mean() + torch.rand(())


class Keeping(Losing):
    def training_step(self, model: Any, batch: Any) -> Any:
        self.kept["count"] = self.kept.get("count", 0) + 1
        return super().training_step(model, batch) * self.kept["count"]


def test_the_trial_changes_no_number(tmp_path: Path) -> None:
    for sanity in (True, False):
        task = Keeping(loss=restless)
        train(tmp_path / str(sanity), task, sanity_evaluation=sanity)
        assert task.kept == {"count": 2}
    first, second = (
        [row["loss"] for row in rows(tmp_path / str(sanity)) if "loss" in row]
        for sanity in (True, False)
    )
    assert len(first) == 2 and first == second


def test_a_task_that_fails_in_evaluation_mode_is_passed_over(tmp_path: Path) -> None:
    def only_in_training(model: Any, batch: Any) -> Tensor:
        if not model.training:
            raise KeyError("losses")
        return errors(model, batch).sum()

    train(tmp_path, Losing(loss=only_in_training))


def test_an_error_behind_the_first_loss_of_the_trial_ends_the_run(tmp_path: Path) -> None:
    """It would be lost: a task may fail once."""
    calls: list[int] = []

    def once(model: Any, batch: Any) -> Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise KeyError("lost connection")
        return errors(model, batch).mean()

    with pytest.raises(KeyError, match="lost connection"):
        train(tmp_path, Losing(loss=once))
