"""The results of a task's building methods, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from ..errors import DataError, LaunchError, TrainerError
from ..task import Data, Task
from ..text import kind_of

if TYPE_CHECKING:
    from ..plan import Plan


def data_of(task: Task) -> Data:
    """Return the result of ``build_data``. Raises ``DataError`` if it is no ``Data``."""
    data: Data = _checked(task, "build_data", task.build_data(), Data, DataError)
    return data


def model_of(task: Task) -> nn.Module:
    """Return the result of ``build_model``. Raises ``LaunchError`` if it is no module."""
    model: nn.Module = _checked(task, "build_model", task.build_model(), nn.Module, LaunchError)
    return model


def optimizer_by(task: Task, model: nn.Module, plan: Plan) -> Optimizer:
    """Return the result of ``build_optimizer``. Raises ``LaunchError`` if it is no optimizer."""
    built = task.build_optimizer(model, plan)
    optimizer: Optimizer = _checked(task, "build_optimizer", built, Optimizer, LaunchError)
    return optimizer


def _checked(task: Task, method: str, value: object, kind: type, error: type[TrainerError]) -> Any:
    if isinstance(value, kind):
        return value
    name = f"{type(task).__qualname__}.{method}"
    raise error(f"{name} must return: {kind.__name__}; it returned {kind_of(value)}")
