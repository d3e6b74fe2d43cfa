"""Which samples, when, on which rank: a pure function of (seed, position, layout).

The global order of an epoch follows from (seed, epoch). A step takes the next ``global_batch_size``
samples of it, cut into micro-batches and ranks; so the same samples meet at the same step on every
layout with the same global batch. The position is one integer: samples consumed since the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate

from .errors import DataError

Indices = list[int]
Order = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a global batch is cut: accumulation_steps x world_size micro-batches of micro_batch_size samples."""

    rank: int
    world_size: int
    micro_batch_size: int
    accumulation_steps: int

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.accumulation_steps * self.world_size


@dataclass(frozen=True, kw_only=True)
class Micro:
    """One micro-batch of this rank. ``weight`` 0 marks one that only takes part, with a borrowed sample."""

    batch: Any
    weight: float


@dataclass(frozen=True, kw_only=True)
class Window:
    """All micro-batches of one optimizer step. ``samples`` counts those of all ranks; ``end`` is the position after."""

    micros: tuple[Micro, ...]
    samples: int
    end: int


def epoch_order(size: int, seed: int, epoch: int) -> Order:
    """The permutation of one epoch; the same on every rank, machine and layout."""
    return np.random.default_rng((seed, epoch)).permutation(size)


def share(taken: Sequence[int] | Order, layout: Layout) -> list[Indices]:
    """This rank's micro-batches of one step, where all ranks together take ``taken``.

    A short step has fewer micro-batches, the same number on every rank; the last of them is dealt out
    evenly, and a rank may get an empty one.
    """
    per_micro = layout.micro_batch_size * layout.world_size
    parts = []
    for start in range(0, len(taken), per_micro):
        block = taken[start : start + per_micro]
        low = len(block) * layout.rank // layout.world_size
        high = len(block) * (layout.rank + 1) // layout.world_size
        parts.append([int(i) for i in block[low:high]])
    return parts


class TrainData:
    """Windows of micro-batches in the global order, from any position.

    Args:
        dataset: map-style, not empty.
        weight_of: items in a batch where they are not the examples (tokens); None where they are.
        drop_last: leave out the short last step of each epoch.
        workers: loading processes of this rank.
    """

    def __init__(
        self,
        dataset: Any,
        layout: Layout,
        *,
        seed: int,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        weight_of: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        self.size = sized(dataset, "train")
        self.dataset, self.layout, self.seed, self.drop_last = dataset, layout, seed, drop_last
        self.weight_of, self.collate = weight_of, collate
        self.workers, self.pin_memory = workers, pin_memory
        batch = layout.global_batch_size
        self.steps_per_epoch = self.size // batch if drop_last else -(-self.size // batch)
        if not self.steps_per_epoch:
            raise DataError(f"drop_last: {self.size} samples do not fill one global batch of {batch}; lower the batch")

    def steps(self, position: int) -> Iterator[tuple[list[Indices], int, int]]:
        """Endless ``(this rank's micro-batches, samples of all ranks, position after)``, without touching the data."""
        batch = self.layout.global_batch_size
        while True:
            epoch, offset = divmod(position, self.size)
            order = epoch_order(self.size, self.seed, epoch)
            while offset < self.size:
                taken = order[offset : offset + batch]
                offset += batch
                if len(taken) < batch and self.drop_last:
                    break
                yield share(taken, self.layout), len(taken), epoch * self.size + min(offset, self.size)
            position = (epoch + 1) * self.size

    def windows(self, position: int, steps: int) -> Iterator[Window]:
        """The next ``steps`` windows from ``position``. Each is fetched whole, so that its weight is known first."""
        batches = iter(
            DataLoader(
                self.dataset,
                batch_sampler=_Batches(self, position, steps),
                collate_fn=self.collate or default_collate,
                num_workers=self.workers,
                pin_memory=self.pin_memory,
                generator=torch.Generator().manual_seed(self.seed),
            )
        )
        for (mine, samples, end), _ in zip(self.steps(position), range(steps), strict=False):
            micros = tuple(self._micro(indices, next(batches)) for indices in mine)
            yield Window(micros=micros, samples=samples, end=end)

    def _micro(self, indices: Indices, batch: Any) -> Micro:
        if not indices:
            return Micro(batch=batch, weight=0.0)
        return Micro(batch=batch, weight=float(len(indices) if self.weight_of is None else self.weight_of(batch)))


class _Batches:
    """The index lists of the coming steps, for torch's DataLoader. An empty share borrows the order's first sample."""

    def __init__(self, data: TrainData, position: int, steps: int) -> None:
        self.data, self.position, self.count = data, position, steps

    def __iter__(self) -> Iterator[Indices]:
        for (mine, _, _), _ in zip(self.data.steps(self.position), range(self.count), strict=False):
            for indices in mine:
                yield indices or [0]


def evaluation_batches(
    dataset: Any,
    layout: Layout,
    *,
    batch_size: int,
    collate: Callable[[Sequence[Any]], Any] | None = None,
    workers: int = 0,
) -> Iterator[tuple[Any, bool]]:
    """``(batch, counts)`` over a whole data set in its own order; every rank gets as many batches.

    A batch that does not count is there because a sharded forward pass needs all ranks.
    """
    size = sized(dataset, "evaluation")
    cut = Layout(rank=layout.rank, world_size=layout.world_size, micro_batch_size=batch_size, accumulation_steps=1)
    lists = share(range(size), cut)
    sampler = [indices or [0] for indices in lists]
    loader = DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=collate or default_collate,
        num_workers=workers,
        generator=torch.Generator().manual_seed(0),
    )
    for indices, batch in zip(lists, loader, strict=True):
        yield batch, bool(indices)


def sized(dataset: Any, name: str) -> int:
    """Length of a map-style data set.

    Raises:
        DataError: a stream, or an empty data set.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(
            f"Data.{name} is a {type(dataset).__name__} without length and indexing; streams are not supported"
        )
    if len(dataset) == 0:
        raise DataError(f"Data.{name} is empty")
    return len(dataset)
