"""Rows of the plan's table that show how a strategy is set up."""

from __future__ import annotations

from typing import Any

import pytest
from launch_texts import FSDP, Write

from trainer.launching.details import details, written
from trainer.launching.files.accelerate_file import read_accelerate_file

EMPTY: dict[str, Any] = {"fsdp": {}, "deepspeed": {}, "dynamo": {}}


@pytest.mark.parametrize(
    ("lines", "row"),
    [
        ("", ("wrapping", "the model as a whole")),
        (
            "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n",
            ("wrapping", "the blocks that the model itself names"),
        ),
        (
            "  fsdp_auto_wrap_policy: SIZE_BASED_WRAP\n  fsdp_min_num_params: 5000\n",
            ("wrapping", "modules of 5,000 parameters and more"),
        ),
        ("  fsdp_reshard_after_forward: false\n", ("reshard", "after the backward pass")),
        (
            "  fsdp_offload_params: true\n",
            ("offload", "parameters, gradients and optimizer state to the CPU"),
        ),
        ("  fsdp_activation_checkpointing: true\n", ("activation checkpointing", "in each unit")),
        ("  fsdp_ignored_modules: head\n", ("ignored modules", "head")),
    ],
)
def test_fsdp(write: Write, lines: str, row: tuple[str, str]) -> None:
    request = read_accelerate_file(write("a.yaml", f"{FSDP}{lines}"))
    rows = details({**EMPTY, "fsdp": request.fsdp})
    assert row in rows
    assert rows[-1] == ("compile", "no")


def test_deepspeed() -> None:
    zero = {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "none"},
        "overlap_comm": True,
    }
    config = {"zero_optimization": zero, "wall_clock_breakdown": False}
    assert details({**EMPTY, "deepspeed": config, "dynamo": {"backend": "eager"}}) == [
        ("offload", "optimizer state to cpu"),
        ("ZeRO", "offload_optimizer.pin_memory=true, overlap_comm=true"),
        ("DeepSpeed", "wall_clock_breakdown=false"),
        ("compile", "eager"),
    ]


def test_settings_are_written_at_any_depth() -> None:
    assert list(written({"a": {"b": 1, "c": {"d": True}}})) == ["a.b=1", "a.c.d=true"]
