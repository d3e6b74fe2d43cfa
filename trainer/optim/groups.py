"""What a run reports of its optimizer and schedule: settings as built, by parameter group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from ..plan import Plan

# Keys of the training config with an optimizer's settings beside its rate.
OF_GROUPS = ("weight_decay", "betas", "eps", "momentum")
# Keys of a group that are not reported: how a step is computed does not change its result.
_NOT_REPORTED = (
    *("params", "param_names", "initial_lr", "decoupled_weight_decay"),
    *("foreach", "fused", "capturable", "differentiable"),
)


def describe_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each parameter group as JSON, and ``parameters``, its trainable ones.

    To be called before the optimizer is prepared, because an engine changes the groups, and before
    a schedule moves ``lr``.
    """
    groups = []
    for group in optimizer.param_groups:
        settings: dict[str, Any] = {}
        for key, value in group.items():
            if hasattr(value, "item"):  # a rate may be a tensor
                value = value.item()
            if isinstance(value, tuple):
                value = list(value)
            if key not in _NOT_REPORTED and isinstance(value, int | float | str | list | None):
                settings[key] = value
        settings["parameters"] = sum(p.numel() for p in group["params"] if p.requires_grad)
        groups.append(settings)
    return groups


def describe_optimizer(optimizer: Optimizer, plan: Plan, built_by: str | None) -> dict[str, Any]:
    """Return what a run reports of its optimizer, to be put over the plan's values.

    Args:
        built_by: the method of the task that built it. None if it is the plan's optimizer.
    """
    groups = describe_groups(optimizer)
    reported: dict[str, Any] = {"optimizer_groups": groups}
    if built_by is not None:
        reported["optimizer"] = f"{type(optimizer).__name__} of {built_by}"
        reported["optimizer_settings"] = {}
        rate = groups[0]["lr"]
        if rate != plan.lr:
            reported |= {"lr": rate, "lr_reference": rate, "lr_scaling": "none"}
    return reported


def describe_schedule(schedule: LRScheduler, built_by: str | None) -> dict[str, Any]:
    """Return what a run reports of its schedule, to be put over the plan's values.

    Args:
        built_by: the method of the task that built it. None if it is the plan's schedule.
    """
    kind = type(schedule).__name__
    if built_by is None:
        return {"schedule_class": kind}
    # The task may have used the config's warm-up or not.
    unknown = dict.fromkeys(("warmup_steps", "warmup_samples", "warmup_fraction"))
    schedule_of_task = {"schedule": f"{kind} of {built_by}", "schedule_settings": {}}
    return {"schedule_class": kind, **schedule_of_task, **unknown}


def group_names(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the groups' names: their own ``name`` or their number. Numbers if names repeat."""
    names = [str(group.get("name", number)) for number, group in enumerate(groups)]
    if len(set(names)) < len(names):
        return [str(number) for number in range(len(groups))]
    return names


def logged_rates(rates: Sequence[Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return ``lr``, the first group's rate, and ``lr/NAME`` of each group if rates can differ.

    Args:
        rates: of the step, by group.
        groups: as ``describe_groups`` returns them.
    """
    values = [float(rate) for rate in rates]
    logged = {"lr": values[0]}
    own_rates = {group.get("lr") for group in groups}
    if len(set(values)) > 1 or len(own_rates) > 1:
        for name, value in zip(group_names(groups), values, strict=True):
            if name != "0":
                logged[f"lr/{name}"] = value
    return logged


def group_texts(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe each group for people. Switches that are off are left out."""
    texts = []
    for group in groups:
        shown = [f"{group['parameters']:,} parameters"]
        for key, value in group.items():
            if key != "parameters" and value not in (None, False):
                shown.append(f"{key} {value}")
        texts.append(", ".join(shown))
    return texts
