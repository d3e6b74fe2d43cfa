"""State that a task keeps in its attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from from_launcher import configured
from one_process import log_of

from trainer import Trainer
from trainer.errors import LaunchError


@dataclass(frozen=True, kw_only=True)
class Keeping(Plain):
    """Changes something in each training step."""

    change: Callable[[Any], None] = field(compare=False)
    hidden: dict[str, Any] = field(default_factory=dict, compare=False)
    drawn: Any = field(default_factory=torch.Generator, compare=False)
    running: Any = field(default_factory=lambda: torch.zeros(1), compare=False)
    teacher: Any = field(default_factory=lambda: torch.nn.Linear(1, 1), compare=False)

    def training_step(self, model: Any, batch: Any) -> Any:
        if model.training:
            self.change(self)
        return super().training_step(model, batch)


class Saving(Keeping):
    def state_dict(self) -> dict[str, Any]:
        return dict(self.hidden)


def carry(task: Keeping) -> None:
    task.hidden["h"] = (torch.rand(2, 3),)


def count(task: Keeping) -> None:
    task.hidden["n"] = task.hidden.get("n", 0) + 1


def move(task: Keeping) -> None:
    with torch.no_grad():
        task.teacher.weight.mul_(0.9)


def cache(task: Keeping) -> None:
    task.hidden.setdefault("weights", torch.ones(3))


def told(folder: Path, task: Keeping, **settings: Any) -> list[str]:
    Trainer(task, configured(folder, max_steps=4, **settings)).fit()
    lines = log_of(folder).splitlines()
    return [line.split("note: ")[1] for line in lines if "while it trains" in line]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (carry, "hidden"),
        (count, "hidden"),
        (move, "teacher"),
        (lambda task: task.running.add_(1), "running"),
        (lambda task: torch.rand(1, generator=task.drawn), "drawn"),
    ],
    ids=["carry", "count", "teacher", "in place", "generator"],
)
def test_an_attribute_that_changes_is_told_once(
    change: Callable[[Any], Any], name: str, tmp_path: Path
) -> None:
    [line] = told(tmp_path, Keeping(change=change), save_every=1)
    assert line.startswith(f"Keeping changes {name} while it trains, which no checkpoint holds")
    assert line.endswith(
        "return the values in Task.state_dict, and set them in Task.load_state_dict"
    )


def test_a_change_between_two_checkpoints_is_told_at_the_second(tmp_path: Path) -> None:
    steps: list[int] = []

    def late(task: Keeping) -> None:
        steps.append(1)
        if len(steps) == 4:
            count(task)

    assert len(told(tmp_path, Keeping(change=late), save_every=2)) == 1


def test_a_cache_and_a_task_with_state_are_not_told(tmp_path: Path) -> None:
    assert told(tmp_path / "cache", Keeping(change=cache)) == []
    assert told(tmp_path / "state", Saving(change=count)) == []


@dataclass(frozen=True, kw_only=True)
class Centered(Plain):
    """Computes the loss with a parameter of its own, alone or in a module."""

    held: Any

    def training_step(self, model: Any, batch: Any) -> Any:
        centre = self.held.weight if isinstance(self.held, torch.nn.Module) else self.held
        return super().training_step(model, batch) + centre.square().mean()


@pytest.mark.parametrize("kind", ["module", "parameter"])
def test_a_parameter_that_only_the_task_holds_is_refused_or_frozen(
    kind: str, tmp_path: Path
) -> None:
    module = torch.nn.Linear(2, 2)
    task = Centered(held=module if kind == "module" else module.weight)
    config = configured(tmp_path / "refused", max_steps=1)
    with pytest.raises(LaunchError, match=r"Centered\.held gets gradients, and nothing trains its"):
        Trainer(task, config).fit()
    module.zero_grad()
    module.requires_grad_(False)
    Trainer(task, replace(config, output_dir=str(tmp_path / "frozen"))).fit()
