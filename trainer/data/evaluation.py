"""The batches of an evaluation: the whole data set once, divided over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader, default_collate

from ..errors import DataError
from .batches import Layout, is_stream, share, sized
from .seeds import generator_of


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
