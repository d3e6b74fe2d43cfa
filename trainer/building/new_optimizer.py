"""The optimizer and the schedule of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..config.plain import plain
from ..config.train_config import DEFAULTS
from ..errors import LaunchError
from ..optim.groups import OF_GROUPS, describe_groups
from ..optim.learning_rate import build_schedule as schedule_of_plan
from ..task import Task, own_optimizer, own_schedule
from ..text import listed
from .returned import returned

if TYPE_CHECKING:
    from ..config.train_config import TrainConfig
    from ..run_plan import Plan


def build_optimizer(
    task: Task, config: TrainConfig, model: nn.Module, plan: Plan
) -> tuple[Optimizer, dict[str, Any], list[str]]:
    """Build the optimizer, by default the plan's, and return its description and notices too."""
    optimizer = returned(task.build_optimizer(model, plan), Optimizer, task, "build_optimizer")
    # SAM takes two gradients a step. A schedule-free optimizer computes the weights to save.
    for method in ("first_step", "eval"):
        if hasattr(optimizer, method):
            raise LaunchError(
                f"{type(optimizer).__name__}.{method} must be called, and no loop here does: take "
                "another one"
            )

    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if not held <= set(model.parameters()):  # its gradient would not be exchanged
        raise LaunchError(
            "the optimizer holds a parameter that is not the model's: make the parameter an "
            "attribute of the module that build_model returns"
        )

    # Engines make a vector of each group. Without a trainable parameter it would be empty.
    groups = optimizer.param_groups
    groups[:] = [group for group in groups if any(p.requires_grad for p in group["params"])]
    if not groups:
        raise LaunchError("the optimizer holds no trainable parameter")

    frozen = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter not in held:
            parameter.requires_grad_(False)
            frozen.append(name)
    described = describe_groups(optimizer)
    reported: dict[str, Any] = {"optimizer_groups": described}
    built_by = own_optimizer(task)
    if built_by is not None:
        kind = type(optimizer).__name__
        reported |= {"optimizer": f"{kind} of {built_by}", "optimizer_settings": {}}
        rate = described[0]["lr"]
        if rate != plan.lr:
            reported |= {"lr": rate, "lr_reference": rate, "lr_scaling": "none"}
        unused = _unused(config, kind, described)
        if unused:
            raise plan.origin(unused[0]).error(
                f"no effect: {built_by} builds the optimizer, {kind}. Remove {listed(unused)}"
            )
    notice = f"not in the optimizer, so frozen, and in no gradient norm: {listed(frozen)}"
    return optimizer, reported, [notice] if frozen else []


def _unused(config: TrainConfig, kind: str, groups: list[dict[str, Any]]) -> list[str]:
    """Return the keys of the config that name another optimizer, or a value that no group has."""
    # A default is not compared: the config.yaml of an earlier run has all keys.
    given = {key: getattr(config, key) for key in OF_GROUPS} | config.optimizer_settings
    unused = [
        key
        for key, value in given.items()
        if value != DEFAULTS.get(key)
        and all(plain(group.get(key)) != plain(value) for group in groups)
    ]
    is_same = (config.optimizer or kind).lower().endswith(kind.lower())
    return unused if is_same else ["optimizer", *unused]


def build_no_optimizer(model: nn.Module) -> tuple[Optimizer, dict[str, Any], list[str]]:
    """Freeze a model for evaluation. Return an optimizer without state, no facts and no notices.

    Engines refuse a model that trains nothing. So the smallest trainable parameter stays trainable:
    gradients, and an engine's own copies, are as small as that parameter.
    """
    sized = [p for p in model.parameters() if p.requires_grad and p.numel()]
    smallest = min(sized, key=nn.Parameter.numel)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is smallest)
    return SGD([smallest], lr=1.0), {}, []


def build_schedule(
    task: Task, config: TrainConfig, plan: Plan, optimizer: Optimizer, total_steps: int
) -> tuple[LRScheduler, dict[str, Any]]:
    """Build the task's schedule, by default the plan's, and its description for reports."""
    own = task.build_schedule(optimizer, plan, total_steps)
    if own is None:
        schedule = schedule_of_plan(optimizer, plan, total_steps)
        return schedule, {"schedule_class": type(schedule).__name__}

    kind = type(returned(own, LRScheduler, task, "build_schedule")).__name__
    origin = plan.origin("schedule")
    if config.schedule is not None or origin.source in plan.files:
        raise origin.named("schedule").error(
            f"{own_schedule(task)} builds the schedule already. Remove one of the two",
            plan.schedule,
        )
    return own, {
        "schedule_class": kind,
        "schedule": f"{kind} of {own_schedule(task)}",
        "schedule_settings": {},
        # The task may have used the config's warm-up or not.
        **dict.fromkeys(("warmup_steps", "warmup_samples", "warmup_fraction")),
    }
