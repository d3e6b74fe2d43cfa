"""The batches of an evaluation: the whole data set once, divided over the ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from typing import Any

from torch.utils.data import DataLoader, default_collate, get_worker_info

from ..errors import DataError
from .alike import check_same_beginning
from .augment import Items, Key, copied
from .batches import Layout, examples_in, parts_of_rank, size_of
from .digest import digest
from .now import current
from .rng import seed_global_generators
from .seeds import generator_of
from .worker_signals import ignore_signals


@dataclass(eq=False)
class EvaluationBatches:
    """The batches of this rank in an evaluation. Each iteration goes over the whole data set anew.

    Yields ``(batch, examples)``, in the data set's order, and as many batches on every rank. A
    batch of 0 examples does not count: with such a padding batch the rank takes part in the forward
    pass of a sharded model. Every rank reads the whole of a stream, without workers, and keeps a
    part. The numbers that a stream draws are the same on every rank and in each evaluation.

    Args:
        layout: of the training, whose batch sizes do not count here.
        batch_size: samples of a rank in a batch.
        workers: loading processes of this rank. They stay until ``close``, with the data set of the
            first evaluation. Their random numbers follow from rank and batch.
        gather: collects a number from each rank, to compare the streams that they read. Collective.

    Raises:
        DataError: the data set is empty. In an iteration: the stream is empty or can be read only
            once, or ranks read different streams.
    """

    dataset: Any
    layout: Layout
    _: KW_ONLY
    batch_size: int
    collate: Callable[[Any], Any] = default_collate
    workers: int = 0
    pin_memory: bool = False
    gather: Callable[[int], list[int]] = lambda number: [number]
    name: str = "Data.evaluation"

    def __post_init__(self) -> None:
        self.size = size_of(self.dataset, self.name)
        self.layout = replace(self.layout, micro_batch_size=self.batch_size, accumulation_steps=1)
        self.items = _OfRank(self.dataset, seed=0, augment=None, layout=self.layout)

    @cached_property
    def _loader(self) -> DataLoader[Any]:
        items: Any = self.items
        return DataLoader(
            items,
            batch_sampler=items,
            collate_fn=self.collate,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=self.pin_memory,
            generator=generator_of(0, self.layout.rank),
            worker_init_fn=ignore_signals,
        )

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yield the batches of this rank. Collective for a stream: call on every rank."""
        read: Any = self._of_stream()
        if self.size is not None:
            read = zip(self.items.parts(), self._loader, strict=True)
        for part, batch in read:
            yield batch, examples_in(batch, len(part))

    def _of_stream(self) -> Iterator[tuple[range, Any]]:
        """Yield this rank's part of each block, which is a batch of all ranks. Collective."""
        from .blocks import blocks  # a set with an index needs none

        read = blocks(self.dataset, self.layout.global_batch_size, 0)
        block = next(read, [])
        check_same_beginning(digest(block[:2]), self.name, self.gather)
        if not block or isinstance(self.dataset, Iterator):
            raise DataError(
                f"{self.name} is an empty stream, or can be read only once: give an object whose "
                "__iter__ starts anew"
            )
        while block:
            [part] = parts_of_rank(range(len(block)), self.layout)
            yield part, self.collate([block[place] for place in part or [0]])  # a padding batch
            block = next(read, [])

    def first(self) -> tuple[Any, int]:
        """Return the first batch of this rank, for a trial that later iterations do not notice.

        Copies of items are collated. Loading processes do not stay. Collective for a stream.
        """
        collate = partial(_collate_copies, self.collate)
        trial = replace(self, collate=collate, workers=min(1, self.workers))
        has_state = hasattr(self.dataset, "load_state_dict")
        state = copy.deepcopy(self.dataset.state_dict()) if has_state else None
        batch = next(iter(trial))
        if has_state:
            self.dataset.load_state_dict(state)
        return batch

    def close(self) -> None:
        """End the loading processes."""
        vars(self).pop("_loader", None)


def _collate_copies(collate: Callable[[Any], Any], items: Sequence[Any]) -> Any:
    return collate([copied(item) for item in items])


@dataclass(eq=False, kw_only=True)
class _OfRank(Items):
    """Items of a rank. Iterate them for the keys of its batches: batch number, index, moment.

    In a loading process items draw from a seed of their batch alone.
    """

    layout: Layout

    def parts(self) -> Iterator[range]:
        """Yield the indices of each batch. A padding batch has none."""
        return parts_of_rank(range(len(self.dataset)), self.layout)

    def __iter__(self) -> Iterator[list[Key]]:
        moment = current()
        for number, part in enumerate(self.parts()):
            yield [(number, index, moment) for index in part or [0]]

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        if get_worker_info() is not None:
            seed_global_generators(0, self.layout.rank, keys[0][0])
        return super().__getitems__(keys)
