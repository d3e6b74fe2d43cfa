"""samecurve: one training script, any strategy, numbers you can trust.

A public name is imported at the first use, so that a mistake in a config is reported before torch
is loaded, which takes seconds. Type checkers read the same names in ``__init__.pyi``.
"""

import importlib
from typing import Any

_MODULES = {
    "Callback": "hooks",
    "CheckpointError": "errors",
    "ConfigError": "errors",
    "Data": "task",
    "DataError": "errors",
    "EvaluationSet": "task",
    "LaunchError": "errors",
    "Launched": "launching",
    "Now": "data.now",
    "Plan": "run_plan",
    "Pretrained": "task",
    "Run": "run",
    "StepInfo": "hooks",
    "Task": "task",
    "TrainConfig": "config.train_config",
    "Trainer": "loop",
    "TrainerError": "errors",
    "blocks": "data.block_files",
    "build": "building.build",
    "is_main": "distributed.main_process",
    "launch": "launching",
    "load_config": "script",
    "load_export": "checkpoint.exported",
    "load_task": "script",
    "main": "script",
    "mixed": "data.mixture",
    "now": "data.now",
    "prepare_once": "data.cache",
    "run_and_exit": "distributed.exit",
    "say": "reporting.say",
    "unwrapped": "strategies.tensors",
}
__all__ = sorted(_MODULES)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_MODULES[name]}", __name__)
    return getattr(module, name)
