"""The strategies by name; the only package, with ``trainer.launching``, that knows what they are
called.
"""

from __future__ import annotations

import importlib

from .base import Shard, StepResult, Strategy

__all__ = ["STRATEGIES", "Shard", "StepResult", "Strategy", "strategy_class"]

STRATEGIES = {
    "single": "ddp:DDP",
    "ddp": "ddp:DDP",
    "fsdp": "fsdp:FSDP2",
    "zero1": "deepspeed:ZeRO",
    "zero2": "deepspeed:ZeRO",
    "zero3": "deepspeed:ZeRO",
}


def strategy_class(name: str) -> type[Strategy]:
    """Import the class of a strategy: a run loads its own only."""
    module, _, cls = STRATEGIES[name].partition(":")
    return getattr(importlib.import_module(f".{module}", __name__), cls)  # type: ignore[no-any-return]
