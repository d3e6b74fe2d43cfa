"""Batches and other values that several files give: their product, and every disagreement."""

from __future__ import annotations

from typing import Any

import pytest
from plans import CPU, HOME, SAID, asked, launched, plan, refusal, request

from trainer import TrainConfig
from trainer.launching.resolve import resolve


def test_the_batch_product() -> None:
    made = plan(None, world=4, micro_batch_size=8, accumulation_steps=3)
    assert (made.micro_batch_size, made.accumulation_steps, made.global_batch_size) == (8, 3, 96)
    assert plan(None, micro_batch_size=8).global_batch_size == 16


@pytest.mark.parametrize(("world", "steps"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_accumulation_follows_from_the_global_batch(world: int, steps: int) -> None:
    made = plan(None, world=world, micro_batch_size=8, global_batch_size=64)
    assert (made.accumulation_steps, made.global_batch_size) == (steps, 64)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        (
            {"micro_batch_size": 8, "global_batch_size": 64},
            "64: must be a multiple of micro_batch_size 8 x world_size 3 = 24; nearest that work: 48 or 72",
        ),
        (
            {"micro_batch_size": 8, "global_batch_size": 16},
            "16: must be a multiple of micro_batch_size 8 x world_size 3 = 24; nearest that work: 24",
        ),
        (
            {"micro_batch_size": 8, "accumulation_steps": 2, "global_batch_size": 64},
            "64: must be micro_batch_size 8 x world_size 3 x accumulation_steps 2 = 48; change one of them",
        ),
    ],
)
def test_a_batch_that_does_not_fit(settings: dict[str, int], rule: str) -> None:
    assert refusal(lambda: plan(None, world=3, **settings)) == f"{SAID}: global_batch_size: {rule}"


def test_a_batch_of_the_json_that_does_not_fit() -> None:
    line = (
        f"{HOME}: train_batch_size: 64: must be micro_batch_size 8 x world_size 2 x "
        "accumulation_steps 2 = 32; change one of them"
    )
    asks = request(global_batch_size=asked(64, "train_batch_size"), accumulation_steps=asked(2))
    assert refusal(lambda: plan(asks, micro_batch_size=8)) == line


def test_the_json_alone_gives_the_batch() -> None:
    asks = request(
        micro_batch_size=asked(4), global_batch_size=asked(32), accumulation_steps=asked(4)
    )
    made = plan(asks)
    assert (made.micro_batch_size, made.accumulation_steps, made.global_batch_size) == (4, 4, 32)
    assert made.origin("micro_batch_size").place == HOME


# Values with two homes


TWO_HOMES = [
    ("micro_batch_size", 4, 8),
    ("accumulation_steps", 2, 4),
    ("global_batch_size", 64, 32),
    ("max_grad_norm", 1.0, 0.5),
    ("max_grad_norm", 0.0, 1.0),
    ("mixed_precision", "bf16", "no"),
    ("mixed_precision", "no", "bf16"),
]


@pytest.mark.parametrize(("key", "ours", "theirs"), TWO_HOMES)
def test_two_homes_that_differ(key: str, ours: Any, theirs: Any) -> None:
    line = f"{SAID}: {key}: {ours!r}: disagrees with {theirs!r} at {HOME}; keep one of the two, or make them equal"
    assert refusal(lambda: plan(request(**{key: asked(theirs)}), **{key: ours})) == line


@pytest.mark.parametrize(("key", "ours", "theirs"), TWO_HOMES)
def test_two_homes_that_agree(key: str, ours: Any, theirs: Any) -> None:
    made = plan(request(**{key: asked(ours)}), **{key: ours})
    assert getattr(made, key) == (ours or None)
    assert made.origin(key).place == SAID


@pytest.mark.parametrize(("key", "ours", "theirs"), TWO_HOMES)
def test_the_files_alone(key: str, ours: Any, theirs: Any) -> None:
    made = plan(request(**{key: asked(theirs)}))
    assert (getattr(made, key), str(made.origin(key))) == (theirs, HOME)


def test_nobody_says_anything() -> None:
    made = plan(request())
    assert (made.mixed_precision, made.max_grad_norm, made.accumulation_steps) == ("no", None, 1)
    assert (made.optimizer, made.schedule, made.lr) == ("adamw", "constant", 1e-3)
    assert str(made.origin("mixed_precision")) == "default"
    assert made.notices == ()


def test_all_disagreements_at_once() -> None:
    asks = request(micro_batch_size=asked(4), accumulation_steps=asked(2), max_grad_norm=asked(1.0))
    text = refusal(lambda: plan(asks, micro_batch_size=8, accumulation_steps=4, max_grad_norm=2.0))
    assert [line.split(": ")[1] for line in text.splitlines()] == [
        "micro_batch_size", "accumulation_steps", "max_grad_norm"
    ]  # fmt: skip


def test_a_config_made_in_code_disagrees_as_well() -> None:
    """Without homes of its values, what differs from the defaults was said."""
    config = TrainConfig(task="m:T", max_steps=10, micro_batch_size=16)
    asks = request(micro_batch_size=asked(4))
    line = f"TrainConfig: micro_batch_size: 16: disagrees with 4 at {HOME}; keep one of the two, or make them equal"
    assert refusal(lambda: resolve(config, asks, launched(), CPU, {})) == line
    silent = TrainConfig(task="m:T", max_steps=10)
    assert resolve(silent, asks, launched(), CPU, {}).micro_batch_size == 4
