"""What a strategy keeps of a model, by the formulas."""

from __future__ import annotations

from trainer.strategies import STRATEGIES as KINDS
from trainer.strategies.costs import Case, Part


def states(strategy: str, elements: int, world: int, **settings: object) -> float:
    case = Case(strategy=strategy, world_size=world, **settings)  # type: ignore[arg-type]
    tensors = world  # the engine keeps a gradient whole where it lies across a border between ranks: here none does
    part = Part(numel=elements // tensors, rows=elements // tensors, count=tensors)
    return KINDS[strategy].footprint(case, [part]).states
