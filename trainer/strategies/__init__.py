"""The strategies by name.

Gradients are averaged inside of ``Strategy.backward``: by torch's DDP reducer, by FSDP2's
reduce-scatter, or by DeepSpeed's engine. Each file begins with the part that a rank holds.

Only this package and ``trainer.launching`` know the names of strategies.
"""

from __future__ import annotations

import importlib

from ..config.train_config import TrainConfig
from .base import Shard as Shard
from .base import StepResult as StepResult
from .base import Strategy as Strategy

STRATEGIES = {
    "single": "ddp:DDP",
    "ddp": "ddp:DDP",
    "fsdp": "fsdp:FSDP2",
    "zero1": "deepspeed:ZeRO",
    "zero2": "deepspeed:ZeRO",
    "zero3": "deepspeed:ZeRO",
}


def strategy_class(name: str, config: TrainConfig | None = None) -> type[Strategy]:
    """Import the class of a strategy. A run imports only the module of the strategy that runs."""
    module_name, _, class_name = STRATEGIES[name].partition(":")
    if config and config.same_bits:
        module_name, class_name = f"exact_{module_name}", f"Exact{class_name}"
    return getattr(  # type: ignore[no-any-return]
        importlib.import_module(f".{module_name}", __name__), class_name
    )
