"""Rows of the plan's table that show how a strategy is set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def details(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the strategy's own settings, and of the compiler, from plan.json."""
    rows = {"fsdp": plan["fsdp"], "deepspeed": plan["deepspeed"], "compile": plan["dynamo"]}
    # The size of a unit is the same in nearly every run. It is in plan.json alone.
    return [
        (name, ", ".join(f"{k} {v}" for k, v in settings.items() if v and k != "min_num_params"))
        for name, settings in rows.items()
        if settings
    ]
