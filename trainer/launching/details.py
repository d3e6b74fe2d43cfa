"""Rows of the plan's table that show how a strategy is set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Rows = list[tuple[str, str]]
# Of FSDP2 in plan.json alone: these are the same in nearly every run.
_UNTOLD = ("fsdp_version", "min_num_params", "state_dict_type", "backward_prefetch")


def details(plan: Mapping[str, Any]) -> Rows:
    """Return the rows of the strategy's own settings, and of the compiler.

    Args:
        plan: as in ``plan.json``.
    """
    told = {key: value for key, value in plan["fsdp"].items() if key not in _UNTOLD}
    engines = {"fsdp": told, "deepspeed": plan["deepspeed"], "compile": plan["dynamo"]}
    return [
        (name, ", ".join(f"{key} {value}" for key, value in settings.items() if value))
        for name, settings in engines.items()
        if settings
    ]
