"""Rows of the plan's table that show how a strategy is set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Rows = list[tuple[str, str]]


def details(plan: Mapping[str, Any]) -> Rows:
    """Return the rows of the strategy's own settings, and of the compiler.

    Args:
        plan: as in ``plan.json``.
    """
    rows = []
    for key, name in (("fsdp", "fsdp"), ("deepspeed", "deepspeed"), ("dynamo", "compile")):
        settings = ", ".join(f"{name} {value}" for name, value in plan[key].items() if value)
        if settings:
            rows.append((name, settings))
    return rows
