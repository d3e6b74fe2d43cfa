"""Reports of the parameter groups of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer

# Keys of the training config with an optimizer's settings beside the rate.
OF_GROUPS = ("weight_decay", "betas", "eps", "momentum")
# Keys of a group that are not reported: how a step is computed does not change its result.
_NOT_REPORTED = (
    "params", "param_names", "initial_lr", "decoupled_weight_decay",
    "foreach", "fused", "capturable", "differentiable",
)  # fmt: skip


def describe_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each group as JSON, with the number of trainable ``parameters``.

    To be called before the optimizer is prepared, because an engine changes the groups, and before
    a schedule moves ``lr``.
    """
    groups = []
    for group in optimizer.param_groups:
        settings: dict[str, Any] = {}
        for key, value in group.items():
            if hasattr(value, "item"):  # a rate may be a tensor
                value = value.item()
            if key not in _NOT_REPORTED and isinstance(value, int | float | str | tuple | None):
                settings[key] = value
        settings["parameters"] = sum(p.numel() for p in group["params"] if p.requires_grad)
        groups.append(settings)
    return groups


def group_names(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the groups' names: their own ``name`` or their number. Numbers if names repeat."""
    numbers = [str(number) for number in range(len(groups))]
    names = [group.get("name", number) for group, number in zip(groups, numbers, strict=True)]
    return names if len({*names}) == len(names) else numbers


def logged_rates(rates: Sequence[Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return ``lr``, the first group's rate, and ``lr/NAME`` of each group if rates can differ.

    Args:
        rates: of the step, by group.
        groups: as ``describe_groups`` returns them.
    """
    values = [float(rate) for rate in rates]
    logged = {"lr": values[0]}
    if len({*values}) > 1 or len({group.get("lr") for group in groups}) > 1:
        for name, value in zip(group_names(groups), values, strict=True):
            if name != "0":
                logged[f"lr/{name}"] = value
    return logged
