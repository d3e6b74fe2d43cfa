"""What the building methods of a task return, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from ..errors import DataError, LaunchError
from ..task import Data, Task
from ..text import kind_of

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..plan import Plan


def data_of(task: Task) -> Data:
    """Return what ``build_data`` gives; ``DataError`` where that is no ``Data``."""
    data = task.build_data()
    if not isinstance(data, Data):
        wanted = "trainer.Data(train=..., evaluation=...)"
        raise DataError(f"{_name(task, 'build_data')} must return {wanted}; {_returned(data)}")
    return data


def model_of(task: Task) -> nn.Module:
    """Return what ``build_model`` gives; ``LaunchError`` where that is no module."""
    model = task.build_model()
    if not isinstance(model, nn.Module):
        raise LaunchError(
            f"{_name(task, 'build_model')} must return the model, an nn.Module; {_returned(model)}"
        )
    return model


def optimizer_by(task: Task, model: nn.Module, plan: Plan) -> Optimizer:
    """Return what ``build_optimizer`` gives; ``LaunchError`` where that is no optimizer."""
    optimizer = task.build_optimizer(model, plan)
    if not hasattr(optimizer, "param_groups"):
        raise LaunchError(
            f"{_name(task, 'build_optimizer')} must return a torch optimizer; "
            f"{_returned(optimizer)}"
        )
    return optimizer


def _name(task: Task, method: str) -> str:
    return f"{type(task).__qualname__}.{method}"


def _returned(value: object) -> str:
    return f"it returned {kind_of(value)}"
