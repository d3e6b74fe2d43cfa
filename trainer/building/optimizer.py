"""The optimizer and the schedule of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import SGD

from ..config.schedules import PLATEAU
from ..errors import ConfigError, LaunchError, Origin, Problem
from ..optim.groups import check_settings_run, describe_optimizer, describe_schedule
from ..optim.schedule import build_schedule as schedule_of_plan
from ..task import Task, own_optimizer, own_schedule
from ..text import listed
from .returned import optimizer_by

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from ..config.train_config import TrainConfig
    from ..plan import Plan


def build_optimizer(
    task: Task, config: TrainConfig, model: nn.Module, plan: Plan
) -> tuple[Optimizer, dict[str, Any], list[str]]:
    """Build the task's optimizer, by default the plan's. Parameters that it lacks are frozen.

    Returns:
        The optimizer, what is reported of it, and a notice if parameters were frozen.

    Raises:
        ConfigError: the task builds an optimizer, and config or launch file name another, or
            settings that it does not have.
        LaunchError: it is no optimizer, trains nothing, or holds a parameter that is not the
            model's: nobody would exchange its gradient, or save it.
    """
    built_by = own_optimizer(task)
    origin = plan.origin("optimizer")
    if built_by is not None and origin.source in plan.files:
        raise _two(built_by, "the optimizer", origin.named("optimizer"), plan.optimizer)
    optimizer = optimizer_by(task, model, plan)
    if built_by is not None:
        check_settings_run(config, plan, optimizer, built_by)

    parameters = {id(parameter) for parameter in model.parameters()}
    held = set()
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            held.add(id(parameter))
            if id(parameter) not in parameters:
                raise LaunchError(
                    f"parameter group {number} of the optimizer holds a parameter of shape "
                    f"{tuple(parameter.shape)} that is not the model's: "
                    "make it an attribute of the module that build_model returns"
                )

    # Engines make one vector of each group. Without a trainable parameter it would be empty.
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


def _two(built_by: str, what: str, origin: Origin, value: object) -> ConfigError:
    """Return the error for an optimizer or a schedule that two places ask for."""
    rule = f"{built_by} builds {what} already; remove one of the two"
    return ConfigError(Problem(origin=origin, value=value, rule=rule))


def build_no_optimizer(model: nn.Module) -> Optimizer:
    """Freeze a model for evaluation, and return an optimizer that keeps nothing.

    Engines take a model together with an optimizer, and refuse a model that trains nothing. So the
    smallest trainable parameter stays trainable: gradients, and an engine's own copies, are as
    small as that parameter. Plain SGD has no state, and is never stepped.

    Args:
        model: not prepared yet; changed in place.

    Raises:
        LaunchError: it has no trainable parameter.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sized = [parameter for parameter in trainable if parameter.numel()]
    if not sized:
        raise LaunchError("the model has no trainable parameters")
    smallest = min(sized, key=nn.Parameter.numel)
    for parameter in trainable:
        parameter.requires_grad_(parameter is smallest)
    return SGD([smallest], lr=1.0)


def build_schedule(
    task: Task, config: TrainConfig, plan: Plan, optimizer: Optimizer, total_steps: int
) -> tuple[LRScheduler, dict[str, Any]]:
    """Build the task's schedule, by default the plan's.

    Returns:
        The schedule, and what is reported of it.

    Raises:
        ConfigError: the task has one of its own, and config or launch file another.
    """
    schedule = task.build_schedule(optimizer, plan, total_steps)
    if schedule is None:
        schedule = schedule_of_plan(optimizer, plan, total_steps)
        return schedule, describe_schedule(schedule, None)

    built_by = f"{type(task).__name__}.build_schedule"
    if type(schedule).__name__ == PLATEAU:
        rule = "follows a metric and not the optimizer steps; not offered"
        raise ConfigError(Problem(origin=Origin(built_by), value=PLATEAU, rule=rule))
    origin = plan.origin("schedule")
    if config.schedule is not None or origin.source in plan.files:
        raise _two(built_by, "a schedule", origin.named("schedule"), plan.schedule)
    return schedule, describe_schedule(schedule, own_schedule(task))
