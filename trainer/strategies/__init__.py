"""The strategies by name; the only package, with ``trainer.launching``, that knows what they are called."""

from __future__ import annotations

from .base import Shard, StepResult, Strategy
from .ddp import Replicated
from .deepspeed import Zero
from .fsdp import FullyShardedTwo

STRATEGIES: dict[str, type[Strategy]] = {
    name: strategy for strategy in (Replicated, FullyShardedTwo, Zero) for name in strategy.names
}

__all__ = ["STRATEGIES", "Shard", "StepResult", "Strategy"]
