"""What is told of an optimizer and a schedule is what was built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from brought_tasks import Plain
from from_launcher import configured
from launchers import json_in
from one_process import fit, rows
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import ExponentialLR

from trainer import ConfigError, Plan, Trainer
from trainer.optim.groups import group_names, logged_rates


class TwoRates(Plain):
    """The head has a rate of its own, and nothing is left of the config's decay."""

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        body, head = list(model[0].parameters()), list(model[2].parameters())  # type: ignore[index, union-attr]
        groups: list[dict[str, Any]] = [
            {"params": body},
            {"params": head, "lr": 10 * plan.lr, "name": "head"},
        ]
        return AdamW(groups, lr=plan.lr, weight_decay=0.05)

    def build_schedule(self, optimizer: Optimizer, plan: Plan, total_steps: int) -> Any:
        return ExponentialLR(optimizer, 0.5)


def plan_of(folder: Path) -> dict[str, Any]:
    return dict(json_in(folder / "plan.json"))


def test_an_optimizer_of_a_task_is_told_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path / "own", TwoRates(), max_steps=3, log_every=1)
    banner = " ".join(capsys.readouterr().out.split())
    assert (
        "AdamW of " in banner
        and "test_groups:TwoRates.build_optimizer, lr 0.05, ExponentialLR of " in banner
    )
    plan = plan_of(tmp_path / "own")
    first, second = plan["optimizer_groups"]
    assert (first["lr"], second["lr"], second["name"]) == (0.05, 0.5, "head")
    assert (
        first["weight_decay"] == second["weight_decay"] == 0.05 and plan["optimizer_settings"] == {}
    )
    assert first["parameters"] + second["parameters"] == plan["trainable_parameters"]
    assert (plan["schedule_class"], plan["warmup_steps"]) == ("ExponentialLR", None)


def test_every_rate_is_logged_where_they_differ(tmp_path: Path) -> None:
    fit(tmp_path / "own", TwoRates(), max_steps=3, log_every=1)
    logged = [(row["lr"], row["lr/head"]) for row in rows(tmp_path / "own") if "loss" in row]
    assert logged == [pytest.approx((0.05 * f, 0.5 * f)) for f in (1, 0.5, 0.25)]

    fit(tmp_path / "usual", Plain(), max_steps=3, log_every=1)
    assert not any(key.startswith("lr/") for row in rows(tmp_path / "usual") for key in row)


class Own(Plain):
    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return Adam(model.parameters(), lr=plan.lr, weight_decay=0.05)


class AsSaid(Plain):
    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return super().build_optimizer(model, plan)


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ({"weight_decay": 0.2}, "weight_decay"),
        ({"optimizer": "sgd"}, "optimizer"),
        ({"betas": (0.8, 0.9)}, "betas"),
        ({"momentum": 0.5, "optimizer": "sgd"}, "optimizer, momentum"),
    ],
)
def test_settings_that_do_not_run_are_refused(
    given: dict[str, Any], keys: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        Trainer(Own(), configured(tmp_path, **given))
    built_by = f"{__name__}:Own.build_optimizer"
    line = f"no effect: {built_by} builds the optimizer, Adam. Remove {keys}"
    assert str(caught.value).endswith(line)


def test_settings_that_a_task_uses_are_not_refused(tmp_path: Path) -> None:
    config = configured(tmp_path / "sgd", optimizer="sgd", weight_decay=0.2, momentum=0.5)
    trainer = Trainer(AsSaid(), config)
    assert isinstance(trainer.run.strategy.optimizer, SGD)
    Trainer(Own(), configured(tmp_path / "own", weight_decay=0.05, optimizer="adam"))


def test_names_and_rates_of_groups() -> None:
    assert group_names([{"name": "a"}, {}, {"name": "b"}]) == ["a", "1", "b"]
    assert group_names([{"name": "a"}, {"name": "a"}]) == ["0", "1"]
    named = [{"lr": 1.0, "name": "stem"}, {"lr": 2.0, "name": "head"}]
    for stem, head in ((1.0, 2.0), (0.0, 0.0)):
        expected = {"lr": stem, "lr/stem": stem, "lr/head": head}
        assert logged_rates([stem, head], named) == expected
    equal: list[dict[str, Any]] = [{"lr": 1.0}, {"lr": 1.0}]
    assert logged_rates([1.0, 1.0], equal) == {"lr": 1.0}
    assert logged_rates([1.0, 0.5], equal) == {"lr": 1.0, "lr/1": 0.5}, "by a schedule"
