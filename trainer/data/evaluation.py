"""The batches of an evaluation: the whole data set once, divided over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, default_collate, get_worker_info

from ..errors import DataError
from .alike import check_same_beginning
from .augment import Items
from .batches import Layout, is_stream, share, sized
from .blocks import blocks
from .digest import digest
from .rng import seed_global_generators
from .seeds import generator_of
from .worker_signals import ignore_signals


class EvaluationBatches:
    """Yields ``(batch, examples)`` over a whole data set in its own order, anew each time; every
    rank as many batches.

    A batch of 0 examples does not count: it is there because a sharded forward pass needs all
    ranks, or another rank counts it. A stream is read by every rank, without workers, and each
    keeps its share; what it draws is the same on all of them and each time.

    Args:
        gather: one number from each rank, to hold the stream that they read to be the same.
            Collective.
        workers: loading processes of this rank. They stay until ``close``, with the data set as it
            was at the first time. What they draw (python, numpy, torch) follows from rank and
            batch, the same each time.
    """

    def __init__(
        self,
        dataset: Any,
        layout: Layout,
        *,
        batch_size: int,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        workers: int = 0,
        pin_memory: bool = False,
        gather: Callable[[int], list[int]] = lambda number: [number],
    ) -> None:
        self.dataset, self.collate, self.gather = dataset, collate or default_collate, gather
        self.workers, self.pin_memory = workers, pin_memory
        self.cut = replace(layout, micro_batch_size=batch_size, accumulation_steps=1)
        self._kept: DataLoader[Any] | None = None

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Raises DataError where there is nothing to measure on."""
        if is_stream(self.dataset):
            yield from self._of_stream()
            return
        loader = self._loader() if self._kept is None else self._kept
        if self.workers:
            self._kept = loader
        parts = share(range(sized(self.dataset, "evaluation")), self.cut)
        for indices, batch in zip(parts, loader, strict=True):
            yield batch, len(indices) * self.cut.counts

    def close(self) -> None:
        """End the loading processes."""
        self._kept = None

    def _loader(self) -> DataLoader[Any]:
        items: Any = _Drawn(self.dataset, self.cut.rank)
        return DataLoader(
            items,
            batch_sampler=_Shares(sized(self.dataset, "evaluation"), self.cut),
            collate_fn=self.collate,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=self.pin_memory,
            generator=generator_of(0, self.cut.rank),
            worker_init_fn=ignore_signals,
        )

    def _of_stream(self) -> Iterator[tuple[Any, int]]:
        read = blocks(self.dataset, self.cut.global_batch_size, 0)
        block = next(read, [])
        digests = self.gather(digest(block[:2]))
        check_same_beginning(digests, "Data.evaluation")
        if not block:
            raise DataError(
                "Data.evaluation gave nothing: an empty stream, or one that can be read only once"
            )
        while block:
            [mine] = share(range(len(block)), self.cut)
            yield self.collate([block[at] for at in mine or [0]]), len(mine) * self.cut.counts
            block = next(read, [])


class _Shares:
    """The keys of this rank's batches, for torch's DataLoader; an empty one is lent the first
    sample.
    """

    def __init__(self, size: int, cut: Layout) -> None:
        self.size, self.cut = size, cut

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for number, indices in enumerate(share(range(self.size), self.cut)):
            yield [(number, index) for index in indices or [0]]


class _Drawn(Items):
    """A data set whose items draw by the seed of their batch in a worker, whatever it has drawn
    before.
    """

    def __init__(self, dataset: Any, rank: int) -> None:
        super().__init__(dataset, seed=0, augment=None)
        self.rank = rank

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[Any]:
        if get_worker_info() is not None:
            seed_global_generators(self.seed, self.rank, keys[0][0])
        return super().__getitems__(keys)
