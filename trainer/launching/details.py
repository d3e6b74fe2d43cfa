"""Rows of the plan's table that show how a strategy is set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Of FSDP2 in plan.json alone: these are the same in nearly every run.
_UNTOLD = ("fsdp_version", "min_num_params", "state_dict_type", "backward_prefetch")


def details(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of the strategy's own settings, and of the compiler, from plan.json."""
    rows = {"fsdp": plan["fsdp"], "deepspeed": plan["deepspeed"], "compile": plan["dynamo"]}
    return [
        (name, ", ".join(f"{k} {v}" for k, v in settings.items() if v and k not in _UNTOLD))
        for name, settings in rows.items()
        if settings
    ]
