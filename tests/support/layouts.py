"""Data sets of numbers, and all the layouts on which they are read."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import torch
from hypothesis import strategies as st

from trainer.data.batches import Layout
from trainer.data.indexed import IndexedData


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class DrawingStream:
    """A stream as in many scripts: Python's generator shuffles it, torch and numpy add noise."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = [*range(12)]
        random.shuffle(order)
        for number in order:
            noise = [float(torch.rand(())), float(np.random.random())]
            yield torch.tensor([number, *noise], dtype=torch.float64)


def layout(rank: int = 0, world: int = 1, micro: int = 4, accumulation: int = 1) -> Layout:
    return Layout(
        rank=rank, world_size=world, micro_batch_size=micro, accumulation_steps=accumulation
    )


def consumed(data: IndexedData, position: int, steps: int) -> list[list[int]]:
    """Sample ids of each step on this rank, without padding batches."""
    return [
        [int(i) for micro in window.micros if micro.weight for i in micro.batch]
        for window in data.windows(position, steps)
    ]


layouts = st.tuples(st.integers(1, 60), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3))


def heavy(batch: torch.Tensor) -> int:
    """A weight that samples below 6 do not have."""
    return int((batch >= 6).sum())
