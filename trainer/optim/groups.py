"""Reports of the parameter groups of an optimizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer

# Keys of the training config with an optimizer's settings beside the rate.
OF_GROUPS = ("weight_decay", "betas", "eps", "momentum")
# Of a parameter group: its parameters, and the learning rate, which is the schedule's.
_NOT_SETTINGS = ("params", "lr", "initial_lr")
# Settings that are not reported: how a step is computed does not change its result.
_NOT_REPORTED = (
    "param_names", "decoupled_weight_decay", "foreach", "fused", "capturable", "differentiable",
)  # fmt: skip


def describe_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each group as JSON, with the number of trainable ``parameters``.

    To be called on a fresh optimizer, before an engine or a schedule changes the groups.
    """
    return [
        {
            **{key: value for key, value in settings(group).items() if key not in _NOT_REPORTED},
            "lr": float(group["lr"]),  # may be a tensor
            "parameters": sum(p.numel() for p in group["params"] if p.requires_grad),
        }
        for group in optimizer.param_groups
    ]


def settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a parameter group as JSON holds them, without the learning rate."""
    found: dict[str, Any] = {}
    for key, value in group.items():
        if key not in _NOT_SETTINGS:
            # Tensors, functions and other objects that JSON lacks are no settings.
            with suppress(TypeError, ValueError):
                found[key] = json.loads(json.dumps(value))
    return found


def group_names(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the groups' names: their own ``name`` or their number. Numbers if names repeat."""
    numbers = [str(number) for number in range(len(groups))]
    names = [group.get("name", number) for group, number in zip(groups, numbers, strict=True)]
    return names if len({*names}) == len(names) else numbers


def logged_rates(rates: Sequence[Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return ``lr``, the first group's rate, and ``lr/NAME`` of each group if rates can differ."""
    values = [float(rate) for rate in rates]
    logged = {"lr": values[0]}
    if len({*values}) > 1 or len({group.get("lr") for group in groups}) > 1:
        for name, value in zip(group_names(groups), values, strict=True):
            if name != "0":
                logged[f"lr/{name}"] = value
    return logged
