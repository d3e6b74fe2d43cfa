"""Losses that are sums over the micro-batch."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from brought_tasks import Plain
from from_launcher import configured
from one_process import rows
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from trainer import LaunchError, TrainConfig, Trainer, now
from trainer.checks.mean_loss import _pickled

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
    return configured(folder, max_steps=2, **settings)


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


def by_place(model: Any, batch: Any) -> Tensor:
    """A mean of errors, each times a number of the step by the place of its row."""
    drawn = torch.rand(len(batch["x"]), generator=torch.Generator().manual_seed(now().step))
    return (errors(model, batch) * drawn).mean()


def advantage(model: Any, batch: Any) -> Tensor:
    """A loss whose values add up to zero, but for rounding."""
    x = model(batch["x"])
    signs = 1.0 - 2.0 * (batch["at"] % 2)
    return ((x / x.detach()) * signs * 0.1).mean()


NOTE = "note: the loss of a batch is not the mean of the losses of its halves"


class TwoCounts(Weighted):
    """Divides by a count that ``weight`` does not return."""

    def weight(self, batch: Any) -> float:
        return len(batch["x"])


def only_in_training(model: Any, batch: Any) -> Tensor:
    if not model.training:
        raise KeyError("losses")
    return errors(model, batch).sum()


def wants_all_rows(model: Any, batch: Any) -> Tensor:
    if len(batch["x"]) != 4:
        raise KeyError("a half")
    return errors(model, batch).mean()


@pytest.mark.parametrize(
    ("task", "size", "is_told"),
    [
        (Losing(loss=contrastive), 8, True),
        (TwoCounts(loss=mean_by_weight), 8, True),
        # As tokens of an untrained model, whose losses are alike.
        (Losing(loss=lambda model, batch: 20 + mean_by_weight(model, batch)), 8, True),
        (Weighted(loss=mean_by_weight), 8, False),
        (Losing(loss=lambda model, batch: errors(model, batch).mean()), 4, False),
        (Losing(loss=lambda model, batch: noisy(model, batch).mean()), 8, False),
        (Losing(loss=lambda model, batch: errors(model, batch).sum()), 1, False),
        (Losing(loss=by_place), 8, False),
        (Losing(loss=advantage), 8, False),
        # The trial fails, and the training will show whether the task is at fault.
        (Losing(loss=only_in_training), 8, False),
        (Losing(loss=wants_all_rows), 4, False),
    ],
)
def test_a_loss_that_is_no_mean_of_halves_is_told_and_others_are_not(
    task: Losing, size: int, is_told: bool, tmp_path: Path, capsys: Any
) -> None:
    train(tmp_path, task, micro_batch_size=size)
    assert (NOTE in capsys.readouterr().out) == is_told


class Sums(Losing):
    """Two parts of a loss, of which a part is a sum."""

    def training_step(self, model: Any, batch: Any) -> Any:
        losses = errors(model, batch)
        return {"mean": losses.mean(), "sum": losses.sum()}

    def weight(self, batch: Any) -> Any:
        return {"mean": len(batch["x"]), "sum": len(batch["x"])}


def test_a_part_that_is_a_sum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="returns a sum over the micro-batch"):
        train(tmp_path, Sums(loss=errors))


class Batch(NamedTuple):
    x: Tensor
    rest: dict[str, Any]


def rows_of(batch: Any) -> list[Any]:
    """Return the batches that the trial makes of a batch of four samples."""
    pickled = _pickled(batch, 4)
    return list(pickle.loads(pickled)) if pickled else []


def test_all_parts_of_a_batch_are_cut() -> None:
    texts = ["a", "b", "c", "d"]
    boxes = [torch.ones(count, 4) for count in range(4)]
    image = Image.new("L", (2, 2))
    rest = {"text": texts, "boxes": boxes, "none": [None] * 4, "image": [image] * 4, "name": "all"}
    batches = rows_of(Batch(torch.arange(4), rest))
    _, again, _, second, *_, thrice = batches
    assert [len(batch.x) for batch in batches] == [4, 4, 2, 2, 1, 1, 3]
    assert again.x.tolist() == [3, 2, 1, 0]
    assert second.rest["text"] == ["c", "d"] and thrice.rest["text"] == ["a"] * 3
    assert [len(part) for part in second.rest["boxes"]] == [2, 3]
    assert second.rest["none"] == [None] * 2 and len(second.rest["image"]) == 2
    assert second.rest["name"] == "all"


@pytest.mark.parametrize(
    "batch",
    [
        {"x": torch.ones(4), "flat boxes": torch.ones(5, 4)},
        {"x": torch.ones(4), "count": 4},
        {"x": torch.ones(4), "graph": object()},
        [lambda: None] * 4,
        torch.ones(1),
    ],
)
def test_other_batches_are_passed_over(batch: Any) -> None:
    assert rows_of(batch) == []
