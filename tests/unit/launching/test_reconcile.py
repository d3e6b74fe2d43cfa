"""Values given in two places: the training config, and the launch files or the task's defaults."""

from __future__ import annotations

from typing import Any

import pytest
from plans import (
    AUTO,
    CPU,
    HOME,
    SAID,
    asked,
    launched,
    plan,
    refusal,
    request,
    with_optimizer,
    with_scheduler,
)

from trainer import Plan, TrainConfig
from trainer.errors import Origin
from trainer.launching.request import Request
from trainer.launching.resolve import resolve


@pytest.mark.parametrize(
    ("key", "ours", "theirs"),
    [
        ("micro_batch_size", 4, 8),
        ("accumulation_steps", 2, 4),
        ("global_batch_size", 64, 32),
        ("max_grad_norm", 0.0, 1.0),
        ("mixed_precision", "no", "bf16"),
    ],
)
def test_a_value_in_two_places_must_be_the_same(key: str, ours: Any, theirs: Any) -> None:
    line = f"{SAID}: {key}: {ours!r}: disagrees with {theirs!r} at {HOME}; keep one of the two"
    assert refusal(lambda: plan(request(**{key: asked(theirs)}), **{key: ours})) == line

    same = plan(request(**{key: asked(ours)}), **{key: ours})
    assert (getattr(same, key), same.origin(key).place) == (ours or None, SAID)
    alone = plan(request(**{key: asked(theirs)}))
    assert (getattr(alone, key), str(alone.origin(key))) == (theirs, HOME)


def test_a_config_made_in_code_disagrees_as_well() -> None:
    """Without homes of its values, what differs from the defaults was said."""
    config = TrainConfig(task="m:T", max_steps=10, micro_batch_size=16)
    asks = request(micro_batch_size=asked(4))
    line = f"TrainConfig: micro_batch_size: 16: disagrees with 4 at {HOME}; keep one of the two"
    assert refusal(lambda: resolve(config, asks, launched(), CPU, {})) == line
    silent = TrainConfig(task="m:T", max_steps=10)
    assert resolve(silent, asks, launched(), CPU, {}).micro_batch_size == 4


# The optimizer and the schedule of a DeepSpeed JSON


def test_the_optimizer_of_the_json() -> None:
    made = plan(with_optimizer(lr=3e-4, betas=[0.9, 0.95], eps=1e-6, weight_decay=0.1))
    assert (made.optimizer, made.lr, str(made.origin("lr"))) == (
        "adamw",
        3e-4,
        "ds.json:13 (optimizer.params.lr)",
    )
    assert made.optimizer_settings == {"betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    assert made.notices == ()


@pytest.mark.parametrize(
    ("kind", "params", "silent", "settings"),
    [
        ("AdamW", {}, ["weight_decay"], {"weight_decay": 0.0}),
        ("SGD", {}, ["momentum", "weight_decay"], {"momentum": 0.0, "weight_decay": 0.0}),
        ("AdamW", AUTO, [], {"weight_decay": 0.01}),
    ],
)
def test_where_a_section_is_silent_the_engines_defaults_hold(
    kind: str, params: dict[str, Any], silent: list[str], settings: dict[str, float]
) -> None:
    made = plan(with_optimizer(kind, **params))
    assert made.optimizer_settings.items() >= settings.items()
    told = {notice.rpartition(", ")[0] for notice in made.notices}
    rule = "DeepSpeed's default holds"
    assert told == {f"ds.json:13: optimizer.params.{key}: {rule}" for key in silent}
    said = plan(with_optimizer(kind, **params), weight_decay=0.2)
    assert said.optimizer_settings["weight_decay"] == 0.2, "unless the training config says one"


def test_auto_and_equal_values_leave_the_config_its_own() -> None:
    made = plan(with_optimizer(**AUTO), lr=2e-3, weight_decay=0.2, optimizer="adamw")
    assert (made.lr, made.optimizer_settings["weight_decay"]) == (2e-3, 0.2)
    assert made.origin("lr").place == SAID
    equal = {"lr": 2e-3, "betas": [0.9, 0.95]}
    assert plan(with_optimizer(**equal), lr=2e-3, betas=(0.9, 0.95)).lr == 2e-3


def test_an_optimizer_in_the_json_and_in_code() -> None:
    line = (
        "ds.json:11: optimizer: 'adamw': my_task:Mine.build_optimizer builds the optimizer already; "
        "remove one of the two"
    )
    assert refusal(lambda: plan(with_optimizer(), built_by="my_task:Mine.build_optimizer")) == line
    assert plan(request(), built_by="my_task:Mine.build_optimizer").optimizer == "adamw"


@pytest.mark.parametrize(
    ("kind", "schedule"),
    [("WarmupLR", "constant"), ("WarmupDecayLR", "linear"), ("WarmupCosineLR", "cosine")],
)
def test_the_scheduler_of_the_json(kind: str, schedule: str) -> None:
    ending = {"cos_min_ratio": 0.25} if kind == "WarmupCosineLR" else {}
    made = plan(with_scheduler(kind, warmup_num_steps=4, warmup_type="linear", **ending))
    assert (made.schedule, made.warmup_steps, made.notices) == (schedule, 4, ())
    assert (made.schedule_settings, made.final_lr_ratio) == ({}, ending.get("cos_min_ratio", 0.0))
    assert str(made.origin("schedule")) == "ds.json:21 (scheduler)"
    logarithmic = plan(with_scheduler(kind, warmup_num_steps=4, warmup_type="log", **ending))
    assert (logarithmic.schedule_settings, logarithmic.notices) == ({"warmup_type": "log"}, ())
    assert plan(
        with_scheduler(kind, warmup_num_steps=4, **ending), warmup_steps=4, schedule=schedule
    ).notices == ("ds.json:23: scheduler.params.warmup_type: DeepSpeed's default holds, log",)


def test_where_a_schedule_is_silent_the_engines_defaults_hold() -> None:
    made = plan(with_scheduler("WarmupCosineLR", warmup_type="linear")).with_length(10)
    assert (made.warmup_steps, made.final_lr_ratio) == (1000, 1e-4)
    assert made.notices == (
        "ds.json:23: scheduler.params.warmup_num_steps: DeepSpeed's default holds, 1000",
        "ds.json:23: scheduler.params.cos_min_ratio: DeepSpeed's default holds, 0.0001",
        "ds.json:23: warmup_steps: the warm-up of 1000 steps is longer than the run: "
        "the rate never reaches its full value",
    )
    said = plan(
        with_scheduler("WarmupCosineLR", warmup_type="linear"),
        warmup_fraction=0.5,
        final_lr_ratio=0.1,
    )
    assert (said.warmup_fraction, said.final_lr_ratio, said.notices) == (0.5, 0.1, ())


def test_the_rate_after_warm_up_may_stand_in_the_schedule_alone() -> None:
    made = plan(
        with_scheduler(
            "WarmupDecayLR", warmup_num_steps=2, warmup_type="linear", warmup_max_lr=3e-4
        )
    )
    assert (made.lr, str(made.origin("lr"))) == (
        3e-4,
        "ds.json:23 (scheduler.params.warmup_max_lr)",
    )
    silent = with_scheduler("WarmupDecayLR", warmup_num_steps=2, warmup_type="linear")
    assert (plan(silent).lr, plan(silent).notices) == (1e-3, ())
    assert plan(silent, lr=3e-4).lr == 3e-4


KEEP = "keep one of the two"


@pytest.mark.parametrize(
    ("asks", "settings", "line"),
    [
        (
            with_optimizer("AdamW"),
            {"optimizer": "sgd"},
            f"{SAID}: optimizer: 'sgd': disagrees with 'adamw' at ds.json:11 (optimizer); {KEEP}",
        ),
        (
            with_optimizer(lr=1e-4),
            {"lr": 1e-3},
            f"{SAID}: lr: 0.001: disagrees with 0.0001 at ds.json:13 (optimizer.params.lr); {KEEP}",
        ),
        (
            with_scheduler("WarmupLR", warmup_num_steps=5),
            {"warmup_fraction": 0.5},
            f"{SAID}: warmup_fraction: 0.5: disagrees with 5 at ds.json:23 "
            f"(scheduler.params.warmup_num_steps); {KEEP}",
        ),
        (
            with_scheduler("WarmupDecayLR", total_num_steps=500),
            {"epochs": 2, "max_steps": None},
            f"{SAID}: max_steps: disagrees with 500 at ds.json:23 "
            f"(scheduler.params.total_num_steps); {KEEP}",
        ),
    ],
)
def test_sections_that_disagree(asks: Request, settings: dict[str, Any], line: str) -> None:
    assert refusal(lambda: plan(asks, **settings)) == line


# Defaults of a task


TASK_DEFAULTS: dict[str, Any] = {
    "lr": 2e-5,
    "weight_decay": 0.0,
    "schedule": "linear",
    "warmup_fraction": 0.03,
    "max_grad_norm": 1.0,
}


def plan_of_task(asks: Request | None = None, **said: Any) -> Plan:
    """The plan for a task with these defaults, and what the YAML says."""
    config = TrainConfig(**{"task": "m:T", "max_steps": 100, **TASK_DEFAULTS, **said})
    origins = {
        key: Origin("default of CausalLM", key=key, is_default=True) for key in TASK_DEFAULTS
    }
    origins |= {key: Origin("train.yaml", 7, key) for key in said}
    return resolve(config, asks, launched(), CPU, origins)


RISING = {"warmup_num_steps": 10, "warmup_type": "linear"}


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        (None, {"lr": 2e-5, "max_grad_norm": 1.0, "schedule": "linear", "warmup_fraction": 0.03}),
        (request(max_grad_norm=asked(0.5)), {"max_grad_norm": 0.5}),
        (with_optimizer(lr=3e-4, weight_decay=0.1), {"lr": 3e-4}),
        (with_optimizer(), {"lr": 2e-5}),
        (
            with_scheduler("WarmupLR", warmup_max_lr=5e-5, **RISING),
            {"schedule": "constant", "warmup_steps": 10, "warmup_fraction": None, "lr": 5e-5},
        ),
        (with_scheduler("WarmupDecayLR", total_num_steps=100, **RISING), {"lr": 2e-5}),
    ],
)
def test_a_json_goes_before_a_tasks_defaults_and_those_before_deepspeeds(
    asks: Request | None, expected: dict[str, Any]
) -> None:
    made = plan_of_task(asks)
    assert {key: getattr(made, key) for key in expected} == expected
    given = plan_of_task(lr=1e-3, max_grad_norm=0.0)
    assert (given.lr, given.max_grad_norm) == (1e-3, None)
