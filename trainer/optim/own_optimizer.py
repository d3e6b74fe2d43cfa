"""The settings of a config, beside an optimizer that a task has built itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config.train_config import DEFAULTS
from ..errors import ConfigError, Origin, Problem
from ..text import listed
from .groups import OF_GROUPS, describe_groups

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..config.train_config import TrainConfig
    from ..plan import Plan


def check_settings_run(
    config: TrainConfig, plan: Plan, optimizer: Optimizer, built_by: str
) -> None:
    """Check that the config's settings are those of an optimizer that a task has built itself.

    A default is not compared: the config.yaml of an earlier run has all keys.

    Args:
        built_by: the method of the task that built it.

    Raises:
        ConfigError: the config names another class, or gives a value that no group has.
    """
    given = {key: getattr(config, key) for key in OF_GROUPS}
    given = {key: value for key, value in given.items() if value != DEFAULTS[key]}
    given |= config.optimizer_settings

    groups = describe_groups(optimizer)
    kind = type(optimizer).__name__
    unused = []
    if config.optimizer and not config.optimizer.lower().endswith(kind.lower()):
        unused.append("optimizer")
    for key, value in given.items():
        plain = list(value) if isinstance(value, tuple) else value
        if all(group.get(key) != plain for group in groups):
            unused.append(key)
    if unused:
        rule = f"no effect: {built_by} builds the optimizer, {kind}; remove {listed(unused)}"
        origin = plan.origins.get(unused[0], Origin("TrainConfig"))
        raise ConfigError(Problem(origin=origin, rule=rule))
