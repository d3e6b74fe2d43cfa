"""Optimizer and scheduler of a DeepSpeed JSON: what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
from plans import AUTO, SAID, plan, refusal, request, with_optimizer, with_scheduler


def test_the_optimizer_of_the_json() -> None:
    made = plan(with_optimizer(lr=3e-4, betas=[0.9, 0.95], eps=1e-6, weight_decay=0.1))
    assert (made.optimizer, made.lr, str(made.origin("lr"))) == (
        "adamw",
        3e-4,
        "ds.json:13 (optimizer.params.lr)",
    )
    assert made.optimizer_settings == {"betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}
    assert made.notices == (
        "ds.json:11 (optimizer): optimizer AdamW runs as torch's adamw, the same under every strategy",
    )


@pytest.mark.parametrize(
    ("kind", "params", "name"),
    [
        ("AdamW", {"torch_adam": True, "adam_w_mode": True, "amsgrad": False}, "adamw"),
        ("Adam", {"bias_correction": True}, "adamw"),
        ("adam", {"adam_w_mode": True}, "adamw"),
        ("Adam", {"adam_w_mode": False}, "adam"),
        ("Adam", {"adam_w_mode": False, "torch_adam": True}, "adam"),
        ("SGD", {"momentum": 0.8, "nesterov": False}, "sgd"),
    ],
)
def test_deepspeeds_names_for_optimizers(kind: str, params: dict[str, Any], name: str) -> None:
    made = plan(with_optimizer(kind, **params))
    assert made.optimizer == name
    assert set(made.optimizer_settings) == {
        "momentum" if name == "sgd" else "betas",
        "weight_decay",
    } | (set() if name == "sgd" else {"eps"})


@pytest.mark.parametrize(
    ("kind", "params", "changed"),
    [
        ("AdamW", {}, {"weight_decay": 0.0}),
        ("AdamW", {"torch_adam": True}, {}),  # torch's own default is ours
        ("Adam", {"adam_w_mode": False, "torch_adam": True}, {"weight_decay": 0.0}),
        ("SGD", {}, {"momentum": 0.0, "weight_decay": 0.0}),
        ("AdamW", AUTO, {}),
    ],
)
def test_where_a_section_is_silent_the_engines_defaults_hold(
    kind: str, params: dict[str, Any], changed: dict[str, float]
) -> None:
    made = plan(with_optimizer(kind, **params))
    ours = {"weight_decay": 0.01, "momentum": 0.9}
    assert {
        key: made.optimizer_settings[key] for key in ours if key in made.optimizer_settings
    } == {
        key: changed.get(key, value)
        for key, value in ours.items()
        if key in made.optimizer_settings
    }
    told = [notice.rpartition(", ") for notice in made.notices if "DeepSpeed's default" in notice]
    assert {words: float(value) for words, _, value in told} == {
        f"ds.json:12: no optimizer.params.{key}: DeepSpeed's default holds": value
        for key, value in changed.items()
    }
    said = plan(with_optimizer(kind, **params), weight_decay=0.2)
    assert said.optimizer_settings["weight_decay"] == 0.2, "unless the training config says one"


def test_auto_leaves_the_config_its_values() -> None:
    made = plan(with_optimizer(**AUTO), lr=2e-3, weight_decay=0.2, optimizer="adamw")
    assert (made.lr, made.optimizer_settings["weight_decay"], made.origin("lr").place) == (
        2e-3,
        0.2,
        SAID,
    )


def test_equal_values_in_json_and_config() -> None:
    made = plan(
        with_optimizer(lr=2e-3, betas=[0.9, 0.95]), lr=2e-3, betas=(0.9, 0.95), optimizer="adamw"
    )
    assert made.lr == 2e-3


def test_an_optimizer_in_the_json_and_in_code() -> None:
    line = (
        "ds.json:11: optimizer: 'AdamW': my_task:Mine.build_optimizer builds the optimizer already; "
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
    ).notices == ("ds.json:22: no scheduler.params.warmup_type: DeepSpeed's default holds, log",)


def test_a_schedule_without_warm_up_has_no_kind_of_it() -> None:
    made = plan(with_scheduler("WarmupLR", warmup_num_steps="auto"))
    assert (made.warmup_steps, made.schedule_settings, made.notices) == (0, {}, ())


def test_where_a_schedule_is_silent_the_engines_defaults_hold() -> None:
    made = plan(with_scheduler("WarmupCosineLR", warmup_type="linear"))
    assert (made.warmup_steps, made.final_lr_ratio) == (1000, 1e-4)
    assert made.notices == (
        "ds.json:22: no scheduler.params.warmup_num_steps: DeepSpeed's default holds, 1000",
        "ds.json:22: no scheduler.params.cos_min_ratio: DeepSpeed's default holds, 0.0001",
        "ds.json:21: warmup_steps: the warm-up of 1000 steps is longer than the run: "
        "the rate never reaches its full value",
    )
    said = plan(
        with_scheduler("WarmupCosineLR", warmup_type="linear"),
        warmup_fraction=0.5,
        final_lr_ratio=0.1,
    )
    assert (said.warmup_steps, said.final_lr_ratio, said.notices) == (5, 0.1, ())


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
    assert plan(silent, lr=3e-4).notices == (
        "ds.json:22: no scheduler.params.warmup_max_lr: DeepSpeed would rise to its default, 0.001; "
        f"lr 0.0003 at {SAID} holds",
    )


def test_a_run_that_ends_in_its_warm_up_is_told_once() -> None:
    made = plan(None, warmup_steps=11)
    rule = "the warm-up of 11 steps is longer than the run: the rate never reaches its full value"
    assert made.notices == (f"{SAID}: warmup_steps: {rule}",)
    assert made.with_length(7).notices == made.notices, (
        "not again where the run turns out even shorter"
    )
    assert plan(None, warmup_steps=10).notices == ()
    by_epochs = plan(None, epochs=1, max_steps=None, warmup_samples=90, micro_batch_size=8)
    assert by_epochs.notices == ()
    rule = "the warm-up of 6 steps is longer than the run: the rate never reaches its full value"
    assert by_epochs.with_length(5).notices == (f"{SAID}: warmup_samples: {rule}",)
