"""The batches of an evaluation: the whole data set once, divided over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader, default_collate, get_worker_info

from ..errors import DataError
from .alike import check_same_beginning
from .augment import Items, Key
from .batches import Layout, is_stream, parts_of_rank, sized
from .blocks import blocks
from .digest import digest
from .now import current
from .rng import seed_global_generators
from .seeds import generator_of
from .worker_signals import ignore_signals


class EvaluationBatches:
    """The batches of this rank in an evaluation; each iteration goes over the whole data set anew.

    Yields ``(batch, examples)``, in the data set's own order, and as many batches on every rank. A
    batch of 0 examples does not count: it is a padding batch, with which the rank takes part in the
    forward pass of a sharded model, or another rank of its tensor-parallel group counts it.

    A stream is read by every rank, without workers, and each keeps its part. What it draws is the
    same on every rank and in each evaluation.

    Args:
        dataset: the data set or stream.
        layout: of the training; the batch is that of the evaluation.
        batch_size: samples of one rank in one batch.
        collate: makes a batch of a list of items; torch's ``default_collate`` by default.
        workers: loading processes of this rank. They stay until ``close``, with the data set as it
            was at the first evaluation. What they draw (Python, numpy, torch) follows from rank and
            batch, so it is the same in each evaluation.
        pin_memory: whether batches lie in page-locked memory, from which a GPU copies faster.
        gather: collects a number from each rank, to compare the streams that they read. Collective.
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
        self.dataset = dataset
        self.layout = replace(layout, micro_batch_size=batch_size, accumulation_steps=1)
        self.collate = collate or default_collate
        self.workers = workers
        self.pin_memory = pin_memory
        self.gather = gather
        self._kept_loader: DataLoader[Any] | None = None

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        """Yield the batches of this rank.

        Collective for a stream: call on every rank.

        Raises:
            DataError: the data set is empty, or ranks read different streams.
        """
        if is_stream(self.dataset):
            return self._of_stream()
        return self._of_data_set()

    def close(self) -> None:
        """End the loading processes."""
        self._kept_loader = None

    def _of_data_set(self) -> Iterator[tuple[Any, int]]:
        loader = self._loader() if self._kept_loader is None else self._kept_loader
        if self.workers:
            self._kept_loader = loader

        parts = parts_of_rank(range(sized(self.dataset, "evaluation")), self.layout)
        for indices, batch in zip(parts, loader, strict=True):
            yield batch, self._counted(indices)

    def _of_stream(self) -> Iterator[tuple[Any, int]]:
        seed = 0
        read = blocks(self.dataset, self.layout.global_batch_size, seed)
        block = next(read, [])
        digests = self.gather(digest(block[:2]))
        check_same_beginning(digests, "Data.evaluation")
        if not block:
            raise DataError(
                "Data.evaluation gave nothing: an empty stream, or one that can be read only once"
            )

        while block:
            [part] = parts_of_rank(range(len(block)), self.layout)
            batch = self.collate([block[place] for place in _or_first(part)])
            yield batch, self._counted(part)
            block = next(read, [])

    def _counted(self, part: range) -> int:
        """Return how many examples of this rank's part count in the evaluation."""
        return len(part) if self.layout.counts else 0

    def _loader(self) -> DataLoader[Any]:
        items: Any = _SeededItems(self.dataset, self.layout.rank)
        return DataLoader(
            items,
            batch_sampler=_BatchKeys(sized(self.dataset, "evaluation"), self.layout),
            collate_fn=self.collate,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            pin_memory=self.pin_memory,
            generator=generator_of(0, self.layout.rank),
            worker_init_fn=ignore_signals,
        )


def _or_first(part: range) -> range:
    """Return the samples of a batch: a padding batch, of the first sample, for an empty part."""
    return part or range(1)


class _BatchKeys:
    """The keys ``(number of the batch, index, now)`` of this rank's batches, for a DataLoader."""

    def __init__(self, size: int, layout: Layout) -> None:
        self.size = size
        self.layout = layout

    def __iter__(self) -> Iterator[list[Key]]:
        moment = current()
        for number, part in enumerate(parts_of_rank(range(self.size), self.layout)):
            yield [(number, index, moment) for index in _or_first(part)]


class _SeededItems(Items):
    """A data set whose items draw, in a loading process, from a seed of their batch.

    Which of the processes reads a batch, and what it has drawn before, makes no difference then.
    """

    def __init__(self, dataset: Any, rank: int) -> None:
        super().__init__(dataset, seed=0, augment=None)
        self.rank = rank

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        if get_worker_info() is not None:
            number_of_batch = keys[0][0]
            seed_global_generators(self.seed, self.rank, number_of_batch)
        return super().__getitems__(keys)
