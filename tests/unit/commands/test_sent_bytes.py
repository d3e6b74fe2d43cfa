"""What ``trainer compare`` computes of the bytes that a run sent, from its plan.json."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.commands.planner.costs import sent_by_plan

PLAN: dict[str, Any] = {
    "strategy": "ddp", "world_size": 2, "mixed_precision": "no", "accumulation_steps": 1, "fsdp": {}, "deepspeed": {},
    "parameters": 100, "trainable_parameters": 60,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 4 * 60),
        ({"strategy": "single", "world_size": 1}, 0),
        ({"strategy": "fsdp"}, (2 * 4 * 100 + 4 * 60) // 2),
        ({"strategy": "fsdp", "fsdp": {"reshard_after_forward": False}}, (4 * 100 + 4 * 60) // 2),
        ({"strategy": "zero2", "accumulation_steps": 3}, (3 * 2 * 4 * 60 + 4 * 60) // 2),
        ({"strategy": "zero3", "mixed_precision": "bf16"}, (4 * 60 + 2 * 2 * 100) // 2),
    ],
)
def test_sent_bytes_follow_the_plan(changes: dict[str, Any], expected: int) -> None:
    assert sent_by_plan(PLAN | changes) == expected


def test_divided_layers_have_no_sent_bytes_for_what_a_group_exchanges_depends_on_the_batch() -> (
    None
):
    assert sent_by_plan(PLAN | {"strategy": "fsdp", "fsdp": {"tp_size": 2}}) is None


@pytest.mark.parametrize("key", PLAN)
def test_plan_without_a_key_that_decides_has_no_sent_bytes(key: str) -> None:
    assert sent_by_plan({name: value for name, value in PLAN.items() if name != key}) is None


def test_older_plan_with_its_own_sent_bytes_gives_the_same() -> None:
    assert sent_by_plan(PLAN | {"sent_bytes_per_step": 240}) == 240
