"""How a global batch is cut into micro-batches and ranks, and the batches of a step."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate

from ..errors import DataError
from ..text import listed
from .augment import Augment, Items
from .seeds import generator_of
from .worker_signals import ignore_signals


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a global batch is cut: accumulation_steps x world_size micro-batches of micro_batch_size
    samples.

    Args:
        rank, world_size: among those that have batches of their own.
        counts: whether what this rank computes counts in sums over ranks; of ranks that share a
            batch the first's does.
    """

    rank: int
    world_size: int
    micro_batch_size: int
    accumulation_steps: int
    counts: bool = True

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.accumulation_steps * self.world_size


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One micro-batch of this rank.

    Args:
        weight: 0 marks a filler, with which the rank takes part in the collectives.
        counts: whether its numbers count in sums over ranks.
    """

    batch: Any
    weight: float
    counts: bool


@dataclass(frozen=True, kw_only=True)
class Window:
    """All micro-batches of one optimizer step. ``samples`` counts those of all ranks; ``end`` is
    the position after.

    ``digest`` is a checksum of the first samples of a stream, which must be the same on every rank;
    0 where nothing is to be compared.
    """

    micros: tuple[MicroBatch, ...]
    samples: int
    end: int
    digest: int = 0

    @property
    def weight(self) -> float:
        """Return what this rank adds to the weight of the step."""
        return sum(micro.weight for micro in self.micros if micro.counts)


def share(taken: range, layout: Layout) -> Iterator[range]:
    """Yield this rank's micro-batches of one step, where all ranks together take ``taken``.

    A short step has fewer micro-batches, the same number on every rank; the last of them is dealt
    out evenly, and a rank may get an empty one.
    """
    per_micro = layout.micro_batch_size * layout.world_size
    for start in range(0, len(taken), per_micro):
        block = taken[start : start + per_micro]
        yield block[
            len(block) * layout.rank // layout.world_size : len(block)
            * (layout.rank + 1)
            // layout.world_size
        ]


class TrainData(ABC):
    """Windows of micro-batches, from any position.

    Args:
        augment: changes an item by the randomness of its (seed, epoch, sample).
        weight_of: items in a batch where they are not the examples (tokens); None where they are.
        drop_last: leave out the short last step of each epoch.
        workers: loading processes of this rank.

    Attributes:
        size, steps_per_epoch: None for a stream, whose length is not known.
    """

    size: int | None = None
    steps_per_epoch: int | None = None

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
        self.items = Items(dataset, seed=seed, augment=augment)
        self.layout, self.seed, self.drop_last = layout, seed, drop_last
        self.weight_of, self.collate = weight_of, collate or default_collate
        self.workers, self.pin_memory = workers, pin_memory
        self._lent: Any = None

    def loader(self, dataset: Any, position: int, **how: Any) -> DataLoader[Any]:
        """Make torch's loader of what comes after ``position``."""
        generator = generator_of(self.seed, self.layout.rank, position)
        how |= {"generator": generator, "worker_init_fn": ignore_signals}
        return DataLoader(dataset, num_workers=self.workers, pin_memory=self.pin_memory, **how)

    def weigh(self, examples: int, batch: Any) -> float:
        """Return the weight of a batch of ``examples``."""
        return float(examples if self.weight_of is None else self.weight_of(batch))

    def micro_batch(self, batch: Any, weight: float) -> MicroBatch:
        """Make the record of a batch that was weighed."""
        return MicroBatch(batch=batch, weight=weight, counts=bool(weight) and self.layout.counts)

    def lend(self, candidates: Iterable[Any]) -> None:
        """Keep the first item that has weight, unless one is kept. (A step where none has any is
        refused.)
        """
        for item in candidates if self._lent is None else ():
            self._lent = copied(item)
            if self.weight_of is None or self.weight_of(self.collate([copied(item)])) > 0:
                return

    def filler(self, candidates: Iterable[Any] = ()) -> Any:
        """Make a batch of weight 0 for a rank without one of its own, so that it still takes part
        in the collectives.

        A batch without weight can have a loss that is no number, and zero times that is no number
        either, in the backward pass too. So an item with weight is lent, copied each time, since
        some collates change their items.
        """
        self.lend(candidates)
        count = min(2, self.layout.micro_batch_size)  # BatchNorm wants more than one value
        return self.collate([copied(self._lent) for _ in range(count)])

    @abstractmethod
    def windows(self, position: int, steps: int) -> Iterator[Window]:
        """Yield the next ``steps`` windows from ``position``, each fetched whole, so that its
        weight is known first.
        """

    @abstractmethod
    def epochs_at(self, position: int) -> float:
        """Return the passes over the data after ``position`` samples; a stream counts finished
        ones.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return where the last window ended, as JSON."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> int:
        """Go on behind the window that ``state`` was taken after, on any layout; returns the
        position.
        """

    def skips(self) -> int:
        """Count the samples that are read over before the next window."""
        return 0


def copied(item: Any) -> Any:
    """Copy an item: as deep as it can be copied, which a lock or a tensor with a graph cannot."""
    try:
        return copy.deepcopy(item)
    except Exception:
        return copy.copy(item)


def is_stream(dataset: Any) -> bool:
    """Tell whether data can only be read from its beginning: without length or indexing, or torch's
    IterableDataset.

    Raises:
        DataError: it is a loader, whose batches would be taken for items, or several data sets.
    """
    if isinstance(dataset, Mapping) and 0 not in dataset:
        names = listed([str(name) for name in dataset])
        raise DataError(
            f"Data holds several data sets ({names}) where one belongs: give one of them"
        )
    if isinstance(dataset, DataLoader):
        raise DataError(
            "Data holds a DataLoader where a data set belongs: give its .dataset, and its collate_fn as Data.collate; "
            "batches, order and workers are made here, from the config"
        )
    indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    return isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not indexed)


def sized(dataset: Any, name: str) -> int:
    """Return the length of a map-style data set.

    Raises:
        DataError: it has none, or is empty.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(f"Data.{name} is a {type(dataset).__name__}, without length and indexing")
    if len(dataset) == 0:
        raise DataError(f"Data.{name} is empty")
    return len(dataset)
