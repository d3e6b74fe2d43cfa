"""The optimizer and the schedule of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import SGD, Optimizer

from ..errors import ConfigError, LaunchError, Problem
from ..optim.groups import describe_optimizer, describe_schedule
from ..optim.schedule import build_schedule as schedule_of_plan
from ..task import Task, own_optimizer, own_schedule
from ..text import listed
from .returned import returned

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from ..config.train_config import TrainConfig
    from ..plan import Plan


def build_optimizer(
    task: Task, config: TrainConfig, model: nn.Module, plan: Plan
) -> tuple[Optimizer, dict[str, Any], list[str]]:
    """Build the task's optimizer, by default the plan's. Parameters outside of it are frozen.

    Returns:
        The optimizer, its description for reports, and a notice if parameters were frozen.

    Raises:
        ConfigError: the task builds an optimizer, and the config names another, or settings that
            this optimizer does not have.
        LaunchError: the task built no optimizer, or an optimizer that trains nothing, or that holds
            a parameter which is not the model's: its gradient would not be exchanged.
    """
    built_by = own_optimizer(task)
    built = task.build_optimizer(model, plan)
    optimizer = returned(built, Optimizer, task, "build_optimizer")
    if built_by is not None:
        from ..optim.own_optimizer import check_settings_run

        check_settings_run(config, plan, optimizer, built_by)

    of_model = {id(parameter) for parameter in model.parameters()}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not held <= of_model:
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
        if parameter.requires_grad and id(parameter) not in held:
            parameter.requires_grad_(False)
            frozen.append(name)
    notices = [f"not in the optimizer, so frozen: {listed(frozen)}"] if frozen else []
    return optimizer, describe_optimizer(optimizer, plan, built_by), notices


def build_no_optimizer(model: nn.Module) -> Optimizer:
    """Freeze a model for evaluation, and return an optimizer that keeps nothing.

    Engines take a model together with an optimizer, and refuse a model that trains nothing. So the
    smallest trainable parameter stays trainable: gradients, and an engine's own copies, are as
    small as that parameter. Plain SGD has no state, and is never stepped.

    Args:
        model: not prepared yet, changed in place.

    Raises:
        LaunchError: the model has no trainable parameter.
    """
    sized = [p for p in model.parameters() if p.requires_grad and p.numel()]
    if not sized:
        raise LaunchError("the model has no trainable parameters")
    smallest = min(sized, key=nn.Parameter.numel)
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is smallest)
    return SGD([smallest], lr=1.0)


def build_schedule(
    task: Task, config: TrainConfig, plan: Plan, optimizer: Optimizer, total_steps: int
) -> tuple[LRScheduler, dict[str, Any]]:
    """Build the task's schedule, by default the plan's.

    Returns:
        The schedule, and its description for reports.

    Raises:
        ConfigError: the task has a schedule of its own, and config or launch file another.
    """
    schedule = task.build_schedule(optimizer, plan, total_steps)
    if schedule is None:
        schedule = schedule_of_plan(optimizer, plan, total_steps)
        return schedule, describe_schedule(schedule, None)

    built_by = own_schedule(task)
    if built_by is not None:
        origin = plan.origin("schedule")
        if config.schedule is not None or origin.source in plan.files:
            rule = f"{built_by} builds the schedule already; remove one of the two"
            named = origin.named("schedule")
            raise ConfigError(Problem(origin=named, value=plan.schedule, rule=rule))
    return schedule, describe_schedule(schedule, built_by)
