"""The plan: values that follow from others, and what is written to plan.json."""

from __future__ import annotations

import json
from typing import Any

import pytest
from plans import SAID, plan, request

from trainer.errors import DEFAULT


def test_origins_are_of_what_was_set() -> None:
    made = plan(lr=0.5)
    assert str(made.origin("lr")) == f"{SAID} (lr)"
    assert made.origin("no such key") == DEFAULT


@pytest.mark.parametrize(
    ("strategy", "settings", "expected"),
    [
        ("fsdp", {}, {"compute": "fp32", "gradients": "fp32"}),
        ("fsdp", {"mixed_precision": "bf16"}, {"compute": "bf16", "gradients": "fp32"}),
        # ZeRO adds up micro-batches in fp32; a single one stays in the dtype of the model.
        ("zero2", {"mixed_precision": "bf16"}, {"compute": "bf16", "gradients": "bf16"}),
        (
            "zero2",
            {"mixed_precision": "bf16", "accumulation_steps": 2},
            {"compute": "bf16", "gradients": "fp32"},
        ),
    ],
)
def test_dtypes_of_computing_and_of_gradients(
    strategy: str, settings: dict[str, Any], expected: dict[str, str]
) -> None:
    precision = plan(request(strategy), **settings).precision
    assert {key: precision[key] for key in expected} == expected
    assert precision["parameters"] == precision["buffers"] == precision["reduction"] == "fp32"


def test_a_warm_up_by_fraction_gets_its_steps_with_the_length_of_the_run() -> None:
    assert plan(warmup_fraction=0.1).with_length(200).warmup_steps == 20
    assert plan(warmup_fraction=0.1).with_length(3).warmup_steps == 1, "at least one"


def test_a_run_that_ends_within_its_warm_up_has_one_notice_of_it() -> None:
    made = plan(warmup_steps=9).with_length(5)
    said = f"{SAID}: warmup_steps: the warm-up of 9 steps is longer than the run"
    assert [notice for notice in made.notices if notice.startswith(said)] == [made.notices[-1]]
    assert made.with_length(5).notices == made.notices
    assert not any(said in notice for notice in plan(warmup_steps=9).with_length(9).notices)


def test_what_is_written_to_plan_json_is_json() -> None:
    made = plan(lr=0.5)
    written = json.loads(json.dumps(made.as_dict()))
    assert written["origins"]["lr"] == f"{SAID} (lr)"
    assert written["precision"] == made.precision
