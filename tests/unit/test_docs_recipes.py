"""What docs/coming_from.md says of step and epoch, transforms, warm-up, averages and groups."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from doc_pages import write_files
from launchers import ROOT
from layouts import layout
from one_process import log_of, rows
from torch import Tensor, nn

import trainer
from trainer import Data, Plan, Task, TrainConfig, Trainer
from trainer.data.indexed import IndexedData
from trainer.optim.learning_rate import lr_factor

PAGE = (ROOT / "docs/coming_from.md").read_text()


@pytest.fixture
def page(module_folder: Path) -> Path:
    """The files of the page, in the current folder."""
    write_files(PAGE)
    return module_folder


def fit(task: Task, **settings: Any) -> dict[str, float]:
    given = {"task": "a:Task", "output_dir": "run", "log_every": 1, "lr": 3e-3, "epochs": 3}
    run = Trainer(task, TrainConfig(**given | settings))
    evaluation = run.fit()
    run.close()
    return evaluation


class Normed(Task):
    """Digits through BatchNorm, each with a partner for mixup."""

    def build_data(self) -> Data:
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        images, labels = torch.tensor(x).float() / 16, torch.tensor(y)
        items = [{"x": image, "y": label} for image, label in zip(images, labels, strict=True)]
        trainer.say(f"{len(items)} digits")

        def augment(item: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
            other = items[int(torch.randint(360, len(items), (), generator=generator))]
            return {**item, "x2": other["x"], "y2": other["y"]}

        return Data(train=items[360:], evaluation=items[:360], augment=augment)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def evaluation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        logits = model(batch["x"])
        loss = nn.functional.cross_entropy(logits, batch["y"], reduction="none")
        return {"loss": loss, "accuracy": (logits.argmax(-1) == batch["y"]).float()}

    def build_optimizer(self, model: nn.Module, plan: Plan) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=plan.lr, momentum=0.9)


class Linear(Task):
    """Two layers without BatchNorm, for the recipes that are no whole task."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def recipe(module: str, name: str) -> Task:
    """Return a task with the methods of the page's class."""
    kind = getattr(importlib.import_module(module), name)
    adam = {"build_optimizer": kind.build_optimizer}  # as any task, not as Normed
    return type(name, (kind, Linear, Normed), adam)()


def test_mixup_by_epoch_trains_with_one_strength_a_step_that_falls(page: Path) -> None:
    evaluation = fit(recipe("mixup", "Mixup"), micro_batch_size=32)
    assert evaluation["eval/accuracy"] > 0.8
    parts = {row["epoch"]: row["part"] for row in rows(Path("run")) if "part" in row}
    assert max(parts.values()) > 0.2 and len(set(parts.values())) > 50
    assert {part for epoch, part in parts.items() if epoch > 2.1} == {0}
    assert log_of(Path("run")).count("1797 digits") == 1


def test_groups_with_names_are_logged_by_them(page: Path) -> None:
    fit(recipe("two_rates", "TwoRates"), epochs=None, max_steps=2)
    row = rows(Path("run"))[0]
    assert (row["lr"], row["lr/stem"], row["lr/head"]) == pytest.approx((3e-4, 3e-4, 3e-3))


# -- torchvision's transforms ---------------------------------------------------------------------


class Shaken:
    """A transform as torchvision's are: it draws from torch's global generator."""

    def __call__(self, image: Tensor) -> Tensor:
        return image + torch.randn(image.shape)


def drawn(augment: Any, world: int, workers: int) -> list[tuple[float, ...]]:
    """Return what all ranks together train on, in two epochs."""
    items = [{"image": torch.full((3,), float(number))} for number in range(12)]
    images = []
    for rank in range(world):
        data = IndexedData(
            items, layout(rank, world, 6 // world), seed=0, augment=augment, workers=workers
        )
        for window in data.windows(0, 4):
            for micro in window.micros:
                images += [tuple(image) for image in micro.batch["image"].tolist()]
    return sorted(images)


def test_a_transform_that_draws_globally_is_the_same_on_every_layout(page: Path) -> None:
    seeded = importlib.import_module("seeded").Seeded(Shaken())
    before = torch.get_rng_state()
    alone = drawn(seeded, world=1, workers=0)
    assert torch.equal(torch.get_rng_state(), before), "dropout draws what it would have drawn"
    assert drawn(seeded, world=2, workers=0) == alone
    assert drawn(seeded, world=2, workers=2) == alone
    assert len(set(alone)) == 24, "each sample of each epoch has its own"


# -- warm-up --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_behind_the_warm_up_both_are_equal(name: str) -> None:
    import transformers

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = getattr(transformers, f"get_{name}_schedule_with_warmup")
    theirs = schedule(optimizer, 4, 20)
    ours = lr_factor(name, {}, warmup_steps=4, total_steps=20)
    for step in range(20):
        if step >= 4:
            assert theirs.get_last_lr()[0] == pytest.approx(ours(step), abs=1e-15)
        optimizer.step()
        theirs.step()


def test_their_warm_up_runs(page: Path) -> None:
    fit(recipe("their_warmup", "TheirWarmup"), epochs=None, max_steps=6, lr=0.4, warmup_steps=4)
    rates = [row["lr"] for row in rows(Path("run")) if "lr" in row]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.2])


# -- a moving average -----------------------------------------------------------------------------


def evaluated(task: Task, model: nn.Module) -> tuple[float, float]:
    """Return loss and accuracy over the evaluation set."""
    items = task.build_data().evaluation
    batch = {key: torch.stack([item[key] for item in items]) for key in ("x", "y")}
    model.eval()
    with torch.no_grad():
        found = task.evaluation_step(model, batch)
    return float(found["loss"].mean()), float(found["accuracy"].mean())


def test_an_averaged_model_has_statistics_of_its_own_by_one_pass(page: Path) -> None:
    with_new_statistics = importlib.import_module("new_statistics").with_new_statistics
    settings = {"epochs": None, "max_steps": 40, "lr": 0.1, "micro_batch_size": 32}
    evaluation = fit(Normed(), ema_decay=0.99, **settings)

    exported = Normed().build_model()
    trainer.load_export(exported, "run/model")
    raw = evaluated(Normed(), exported)
    assert raw[0] == pytest.approx(evaluation["eval/loss"], rel=1e-5), "what the run evaluates"

    model = with_new_statistics(Normed(), "run/model")
    anew = evaluated(Normed(), model)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, exported.get_parameter(name)), name
    told = re.search(r"the loss falls from ([\d.]+) to ([\d.]+)", PAGE)
    assert told is not None
    assert (raw[0], anew[0]) == pytest.approx((float(told[1]), float(told[2])), rel=0.02)
