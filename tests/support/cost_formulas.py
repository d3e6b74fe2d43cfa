"""What the formulas of the planner give for one tensor."""

from __future__ import annotations

from trainer.commands.planner.costs import Case, Part, footprint


def states(strategy: str, elements: int, world: int, **settings: object) -> float:
    case = Case(strategy=strategy, world_size=world, **settings)  # type: ignore[arg-type]
    # the engine keeps a gradient whole where it lies across a border between ranks: here none does
    tensors = world
    part = Part(numel=elements // tensors, rows=elements // tensors, count=tensors)
    return footprint(case, [part]).states
