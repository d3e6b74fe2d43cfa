"""Rows of the plan's table that show how a strategy is set up."""

from __future__ import annotations

from trainer.launching.details import details


def test_each_engine_has_a_row() -> None:
    plan = {
        "fsdp": {"cpu_offload": False, "auto_wrap_policy": "NO_WRAP"},
        "deepspeed": {},
        "dynamo": {"backend": "inductor"},
    }
    assert details(plan) == [("fsdp", "auto_wrap_policy NO_WRAP"), ("compile", "backend inductor")]
    assert details({"fsdp": {}, "deepspeed": {}, "dynamo": {}}) == []
