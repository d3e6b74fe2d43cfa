"""Defaults of a task beside launch files: these win without a disagreement, also where they stand
in a section.
"""

from __future__ import annotations

from typing import Any

import pytest
from plans import AUTO, CPU, HOME, asked, launched, request, with_optimizer, with_scheduler

from trainer import Plan, TrainConfig
from trainer.errors import Origin
from trainer.launching.request import Request
from trainer.launching.resolve import resolve

DEFAULTS: dict[str, Any] = {
    "lr": 2e-5,
    "weight_decay": 0.0,
    "schedule": "linear",
    "warmup_fraction": 0.03,
    "max_grad_norm": 1.0,
}
TOLD = "defaults of CausalLM, which starts from a pretrained model: "
HOW = "; set them in the config to change them"


def plan(asks: Request | None = None, **said: Any) -> Plan:
    """The plan for a task with these defaults, and what the YAML says."""
    config = TrainConfig(**{"task": "m:T", "max_steps": 100, **DEFAULTS, **said})
    origins = {key: Origin("default of CausalLM", key=key, is_default=True) for key in DEFAULTS}
    origins |= {key: Origin("train.yaml", 7, key) for key in said}
    return resolve(config, asks, launched(), CPU, origins)


def told(made: Plan) -> list[str]:
    """The values that the line about the defaults lists."""
    lines = [line for line in made.notices if line.startswith(TOLD)]
    return [
        value for line in lines for value in line.removeprefix(TOLD).removesuffix(HOW).split(", ")
    ]


def test_all_of_them_are_told_in_one_line() -> None:
    made = plan()
    assert (made.lr, made.optimizer_settings["weight_decay"], made.max_grad_norm) == (
        2e-5,
        0.0,
        1.0,
    )
    assert (made.schedule, made.warmup_steps) == ("linear", 3)
    line = (
        TOLD
        + "lr 2e-05, weight_decay 0.0, schedule linear, warmup_fraction 0.03, max_grad_norm 1.0"
        + HOW
    )
    assert made.notices == (line,)
    assert str(made.origin("lr")) == "default of CausalLM (lr)"


def test_what_the_config_says_is_not_listed() -> None:
    assert told(plan(lr=1e-3, max_grad_norm=0.0)) == [
        "weight_decay 0.0",
        "schedule linear",
        "warmup_fraction 0.03",
    ]


def test_clipping_of_the_json_wins() -> None:
    made = plan(request(max_grad_norm=asked(0.5)))
    assert (made.max_grad_norm, made.origin("max_grad_norm").place) == (0.5, HOME)
    assert told(made) == ["lr 2e-05", "weight_decay 0.0", "schedule linear", "warmup_fraction 0.03"]
    assert plan(request(max_grad_norm=asked(0.0))).max_grad_norm is None


def test_an_optimizer_of_the_json_wins() -> None:
    made = plan(with_optimizer(lr=3e-4, weight_decay=0.1))
    assert (made.lr, made.optimizer_settings["weight_decay"]) == (3e-4, 0.1)
    assert str(made.origin("lr")) == "ds.json:13 (optimizer.params.lr)"
    assert told(made) == ["schedule linear", "warmup_fraction 0.03", "max_grad_norm 1.0"]


@pytest.mark.parametrize("params", [{}, AUTO])
def test_what_a_section_leaves_open_is_the_tasks(params: dict[str, Any]) -> None:
    made = plan(with_optimizer(**params))
    assert (made.lr, made.optimizer_settings["weight_decay"]) == (2e-5, 0.0)
    line = (
        "ds.json:12: no optimizer.params.lr: DeepSpeed would take its default, 0.001; 2e-05, the default of CausalLM, "
        "holds"
    )
    assert (line in made.notices) == (not params)


def test_a_scheduler_of_the_json_wins_with_its_warm_up() -> None:
    made = plan(
        with_scheduler("WarmupLR", warmup_num_steps=10, warmup_max_lr=5e-5, warmup_type="linear")
    )
    assert (made.schedule, made.warmup_steps, made.warmup_fraction, made.lr) == (
        "constant",
        10,
        None,
        5e-5,
    )
    assert told(made) == ["weight_decay 0.0", "max_grad_norm 1.0"]
    assert made.origin("warmup_fraction").source == "ds.json"


def test_the_peak_that_a_scheduler_leaves_open_is_the_tasks() -> None:
    params = {"total_num_steps": 100, "warmup_num_steps": 10, "warmup_type": "linear"}
    made = plan(with_scheduler("WarmupDecayLR", **params))
    assert (made.lr, told(made)) == (2e-5, ["lr 2e-05", "weight_decay 0.0", "max_grad_norm 1.0"])
    assert [
        line
        for line in made.notices
        if line.endswith("0.001; 2e-05, the default of CausalLM, holds")
    ]
