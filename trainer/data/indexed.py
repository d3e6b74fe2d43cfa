"""Which samples, when, on which rank: a pure function of (seed, position, layout).

The global order of an epoch follows from (seed, epoch). A step takes the next ``global_batch_size``
samples of it, cut into micro-batches and ranks; so the same samples meet at the same step on every
layout with the same global batch. The position is one integer: samples consumed since the start.
Streams, which have no order to choose, are read by ``stream.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset, default_collate

from ..errors import DataError
from .augment import Augment, Items, generator_of

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
        augment: changes an item by the randomness of its (seed, epoch, index).
        weight_of: items in a batch where they are not the examples (tokens); None where they are.
        drop_last: leave out the short last step of each epoch.
        workers: loading processes of this rank. Randomness of their own (python, numpy, torch) differs between
            ranks and repeats from run to run.
    """

    skips = 0  # samples to read over before the next window; a map-style data set has none

    def __init__(
        self,
        dataset: Any,
        layout: Layout,
        *,
        seed: int,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        augment: Augment | None = None,
        weight_of: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        self.size = sized(dataset, "train")
        self.items = Items(dataset, seed=seed, augment=augment)
        self.layout, self.seed, self.drop_last = layout, seed, drop_last
        self.weight_of, self.collate = weight_of, collate or default_collate
        self.workers, self.pin_memory = workers, pin_memory
        self.position = self._lender = 0
        batch = layout.global_batch_size
        self.steps_per_epoch = self.size // batch if drop_last else -(-self.size // batch)
        if not self.steps_per_epoch:
            raise DataError(f"drop_last: {self.size} samples do not fill one global batch of {batch}; lower the batch")

    def steps(self, position: int) -> Iterator[tuple[int, list[Indices], int, int]]:
        """Endless ``(epoch, this rank's micro-batches, samples of all ranks, position after)``; reads no data."""
        batch = self.layout.global_batch_size
        while True:
            epoch, offset = divmod(position, self.size)
            order = epoch_order(self.size, self.seed, epoch)
            while offset < self.size:
                taken = order[offset : offset + batch]
                offset += batch
                if len(taken) < batch and self.drop_last:
                    break
                yield epoch, share(taken, self.layout), len(taken), epoch * self.size + min(offset, self.size)
            position = (epoch + 1) * self.size

    def windows(self, position: int, steps: int) -> Iterator[Window]:
        """The next ``steps`` windows from ``position``. Each is fetched whole, so that its weight is known first."""
        batches = iter(
            DataLoader(
                self.items,  # type: ignore[arg-type]  # it is fetched by lists of keys
                batch_sampler=_Batches(self, position, steps),
                collate_fn=self.collate,
                num_workers=self.workers,
                pin_memory=self.pin_memory,
                generator=generator_of(self.seed, self.layout.rank, position),
            )
        )
        for _, mine, samples, end in islice(self.steps(position), steps):
            micros = tuple(self._micro(len(part), next(batches)) if part else self._borrowed() for part in mine)
            self.position = end
            yield Window(micros=micros, samples=samples, end=end)

    def _micro(self, examples: int, batch: Any) -> Micro:
        weight = float(examples if self.weight_of is None else self.weight_of(batch))
        return Micro(batch=batch, weight=weight) if weight else self._borrowed()

    def _borrowed(self) -> Micro:
        """Make a placeholder with weight 0, so that this rank still takes part in the collectives.

        A batch without any can have a loss that is no number, and zero times that is no number either, in the
        backward pass too. So samples with weight are lent: the first in index order is remembered, and read anew each
        time, since some collates change their items.
        """
        count = min(2, self.size, self.layout.micro_batch_size)  # BatchNorm wants more than one value
        for distance in range(self.size):
            index = (self._lender + distance) % self.size
            batch = self.collate(self.items.__getitems__([(0, (index + at) % self.size) for at in range(count)]))
            if self.weight_of is None or self.weight_of(batch) > 0:
                self._lender = index
                return Micro(batch=batch, weight=0.0)
        raise DataError(f"Data.train: none of its {self.size} samples has a weight; check Task.weight and the labels")

    def steps_left(self, position: int, epochs: int) -> int:
        """Count the optimizer steps from ``position`` to the end of pass number ``epochs``; below 0 beyond it."""
        epoch, offset = divmod(position, self.size)
        batch, rest = self.layout.global_batch_size, self.size - offset
        if epoch >= epochs:
            return -((position - epochs * self.size) // batch)
        return (rest // batch if self.drop_last else -(-rest // batch)) + (epochs - epoch - 1) * self.steps_per_epoch

    def epochs_at(self, position: int) -> float:
        """Passes over the data after ``position`` samples."""
        return position / self.size

    def state(self) -> dict[str, Any]:
        """Where the last window ended, as JSON."""
        return {"samples": self.position}

    def lost_on_resume(self) -> str:
        """Nothing: the order is a function of the position."""
        return ""

    def restore(self, state: Mapping[str, Any]) -> int:
        """Go on behind the window that ``state`` was taken after, on any layout; returns the position."""
        self.position = int(state["samples"])
        return self.position


class _Batches:
    """The keys of the coming micro-batches of this rank, for torch's DataLoader; empty ones are not loaded."""

    def __init__(self, data: TrainData, position: int, steps: int) -> None:
        self.data, self.position, self.count = data, position, steps

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for epoch, mine, _, _ in islice(self.data.steps(self.position), self.count):
            yield from ([(epoch, index) for index in part] for part in mine if part)


def evaluation_batches(
    dataset: Any,
    layout: Layout,
    *,
    batch_size: int,
    collate: Callable[[Sequence[Any]], Any] | None = None,
    workers: int = 0,
) -> Iterator[tuple[Any, int]]:
    """Yield ``(batch, examples)`` over a whole data set in its own order; every rank gets as many batches.

    A batch of 0 examples does not count: it is there because a sharded forward pass needs all ranks. A stream is read
    by every rank, without workers, and each keeps its share. Raises DataError where there is nothing to measure on.
    """
    cut = Layout(rank=layout.rank, world_size=layout.world_size, micro_batch_size=batch_size, accumulation_steps=1)
    if is_stream(dataset):
        yield from _stream_batches(dataset, cut, collate)
        return
    lists = share(range(sized(dataset, "evaluation")), cut)
    sampler = [indices or [0] for indices in lists]
    loader = DataLoader(
        dataset,
        batch_sampler=sampler,
        collate_fn=collate or default_collate,
        num_workers=workers,
        generator=generator_of(0, layout.rank),
    )
    for indices, batch in zip(lists, loader, strict=True):
        yield batch, len(indices)


def _stream_batches(
    dataset: Any, cut: Layout, collate: Callable[[Sequence[Any]], Any] | None
) -> Iterator[tuple[Any, int]]:
    stream, empty = iter(dataset), True
    while block := list(islice(stream, cut.global_batch_size)):
        [mine] = share(range(len(block)), cut)
        yield (collate or default_collate)([block[at] for at in mine or [0]]), len(mine)
        empty = False
    if empty:
        raise DataError("Data.evaluation gave nothing: an empty stream, or one that can be read only once")


def is_stream(dataset: Any) -> bool:
    """Whether a data set can only be read from its beginning: no length, no indexing, or torch's IterableDataset."""
    indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    return isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not indexed)


def sized(dataset: Any, name: str) -> int:
    """Length of a map-style data set.

    Raises:
        DataError: it has none, or is empty.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(f"Data.{name} is a {type(dataset).__name__}, without length and indexing")
    if len(dataset) == 0:
        raise DataError(f"Data.{name} is empty")
    return len(dataset)
