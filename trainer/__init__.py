"""samecurve: one training script, any strategy, numbers you can trust.

Names are imported at first use, so that a wrong config is answered before torch is loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callbacks import Callback as Callback
    from .config import TrainConfig as TrainConfig
    from .config import load_config as load_config
    from .errors import CheckpointError as CheckpointError
    from .errors import ConfigError as ConfigError
    from .errors import DataError as DataError
    from .errors import LaunchError as LaunchError
    from .errors import TrainerError as TrainerError
    from .export import load_export as load_export
    from .launching import Launched as Launched
    from .launching import Plan as Plan
    from .launching import launch as launch
    from .leave import run as run
    from .loop import StepInfo as StepInfo
    from .loop import Trainer as Trainer
    from .prepare import prepared as prepared
    from .script import load_task as load_task
    from .script import main as main
    from .task import Data as Data
    from .task import Task as Task
    from .train_state import TrainState as TrainState

_HOMES = {
    "Callback": "callbacks",
    "CheckpointError": "errors",
    "ConfigError": "errors",
    "Data": "task",
    "DataError": "errors",
    "LaunchError": "errors",
    "Launched": "launching",
    "Plan": "launching",
    "StepInfo": "loop",
    "Task": "task",
    "TrainConfig": "config",
    "TrainState": "train_state",
    "Trainer": "loop",
    "TrainerError": "errors",
    "launch": "launching",
    "load_config": "config",
    "load_export": "export",
    "load_task": "script",
    "main": "script",
    "prepared": "prepare",
    "run": "leave",
}

__all__ = sorted(_HOMES)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
