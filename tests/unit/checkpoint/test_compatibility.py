"""What may change over a resume, and what is refused or told."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import checkpoint, fit, log_of, steps
from resuming import Odd
from torch import nn
from torch.optim import Optimizer

from trainer import CheckpointError, ConfigError, Plan


def test_settings_that_change_the_numbers_are_refused_or_reported(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    resume = str(checkpoint(tmp_path / "run", 4))
    changed: dict[str, Any] = {"seed": 7, "weight_decay": 0.1, "log_every": 2}
    with pytest.raises(ConfigError) as caught:
        fit(tmp_path / "new", resume=resume, **changed)
    text = str(caught.value)
    assert "optimizer_groups.0.settings.weight_decay: 0.01 -> 0.1" in text
    assert "allow_config_change: true" in text and "log_every" not in text
    fit(tmp_path / "new", resume=resume, allow_config_change=True, **changed)
    assert (
        "note: changed since the checkpoint: seed: 0 -> 7" in (tmp_path / "new/log.txt").read_text()
    )


def test_the_state_of_another_optimizer_starts_fresh(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    resume = str(checkpoint(tmp_path / "run", 4))
    fit(tmp_path / "new", Odd(dropout=0.2, sgd=True), resume=resume, allow_config_change=True)
    assert "the optimizer changed: its state starts fresh" in (tmp_path / "new/log.txt").read_text()


@dataclass(frozen=True, kw_only=True)
class Rated(Odd):
    """Has a rate, a decay and a beta in code, as nothing in the config says."""

    rate: float = field(default=1e-3, compare=False)
    decay: float = field(default=0.0, compare=False)
    beta: float = field(default=0.9, compare=False)
    schedule: str = field(default="", compare=False)

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        first, *rest = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups: list[dict[str, Any]] = [{"params": [first]}, {"params": rest, "lr": self.rate}]
        return torch.optim.AdamW(
            groups, lr=plan.lr, weight_decay=self.decay, betas=(self.beta, 0.99)
        )

    def build_schedule(self, optimizer: Optimizer, plan: Plan, total_steps: int) -> Any:
        return (
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
            if self.schedule == "exponential"
            else None
        )


@pytest.mark.parametrize("schedule", ["", "exponential"])
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rate": 2e-2}, r"base_lrs: \[0\.001\] -> \[0\.02\]"),
        ({"decay": 0.5}, r"optimizer_groups\.0\.settings\.weight_decay: 0\.0 -> 0\.5"),
        ({"beta": 0.5}, r"optimizer_groups\.0\.settings\.betas: \[0\.9\] -> \[0\.5\]"),
    ],
)
def test_what_code_changes_in_a_group_is_a_changed_setting(
    changed: dict[str, float], said: str, schedule: str, tmp_path: Path
) -> None:
    fit(tmp_path / "run", Rated(schedule=schedule), max_steps=4)
    resume = str(checkpoint(tmp_path / "run", 4))
    fit(tmp_path / "same", Rated(schedule=schedule), resume=resume)
    assert "changed since the checkpoint" not in log_of(tmp_path / "same")

    task = Rated(schedule=schedule, **changed)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=rf"belongs to a run with other numbers; restore these values, .*: {said}"
    ):
        fit(tmp_path / "no", task, resume=resume)
    fit(tmp_path / "new", task, resume=resume, allow_config_change=True)
    assert re.search(f"note: changed since the checkpoint: {said}", log_of(tmp_path / "new"))


@dataclass(frozen=True, kw_only=True)
class Part(Odd):
    """Learns with some of its layers only."""

    learns: tuple[str, ...] = ("middle", "back", "embedding", "scale")

    def build_model(self) -> nn.Module:
        model = super().build_model()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.partition(".")[0] in self.learns)
        return model


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (("middle",), ("middle", "scale"), r'trained: \[\] -> \["scale"\]'),
        (("middle",), ("back",), r'trained: \[.*"middle.weight"\] -> \[.*"back.weight"\]'),
    ],
)
def test_layers_are_frozen_and_thawed_if_that_is_allowed(
    before: tuple[str, ...], now: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    """``tests/workers/checkpoint_errors.py`` compares the weights and the optimizer's state."""
    fit(tmp_path / "run", Part(learns=before), max_steps=4, ema_decay=0.9)
    settings: dict[str, Any] = {"resume": str(checkpoint(tmp_path / "run", 4)), "ema_decay": 0.9}
    with pytest.raises(ConfigError, match=rf"belongs to a run with other numbers; .*{said}"):
        fit(tmp_path / "no", Part(learns=now), **settings)
    fit(tmp_path / "new", Part(learns=now), allow_config_change=True, **settings)
    assert re.search(f"note: changed since the checkpoint: {said}", log_of(tmp_path / "new"))


# -- optimizers ------------------------------------------------------------------------------------


class Factored(Odd):
    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return torch.optim.Adafactor([p for p in model.parameters() if p.requires_grad], lr=plan.lr)


def test_state_that_cannot_be_cut_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"Adafactor keeps 'row_var' \(\(5, 1\)\) for a parameter of shape \(5,",
    ):
        fit(tmp_path / "a", Factored())
    fit(tmp_path / "b", Factored(), keep_last=0, save_every=None)
    assert steps(tmp_path / "b") == []
