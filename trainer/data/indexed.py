"""Which samples, when, on which rank: a pure function of (seed, position, layout).

The global order of an epoch follows from (seed, epoch). A step takes the next ``global_batch_size``
samples of it, cut into micro-batches and ranks; so the same samples meet at the same step on every
layout with the same global batch. The position is one integer: samples consumed since the start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from ..errors import CheckpointError, DataError
from .batches import Layout, MicroBatch, TrainData, Window, share, sized
from .order import ORDERS, order_for


class IndexedData(TrainData):
    """Windows of a map-style data set, in the global order. It must not be empty.

    Randomness of loading workers of their own (python, numpy, torch) differs between ranks and
    repeats from run to run.
    """

    size: int
    steps_per_epoch: int

    def __init__(self, dataset: Any, layout: Layout, **settings: Any) -> None:
        super().__init__(dataset, layout, **settings)
        self.size = sized(dataset, "train")
        self.position = 0
        self.order = order_for(self.size)
        batch = layout.global_batch_size
        self.steps_per_epoch = self.size // batch if self.drop_last else -(-self.size // batch)
        if not self.steps_per_epoch:
            raise DataError(
                f"drop_last: {self.size} samples do not fill one global batch of {batch}; lower the batch"
            )

    def steps(self, position: int) -> Iterator[tuple[int, list[range], int, int]]:
        """Yield ``(epoch, this rank's micro-batches, samples of all ranks, position after)`` for
        ever.

        A micro-batch is where its samples stand in the order of the epoch, which is not computed
        here.
        """
        batch = self.layout.global_batch_size
        while True:
            epoch, offset = divmod(position, self.size)
            while offset < self.size:
                taken = range(offset, min(offset + batch, self.size))
                offset += batch
                if len(taken) < batch and self.drop_last:
                    break
                yield (
                    epoch,
                    [*share(taken, self.layout)],
                    len(taken),
                    epoch * self.size + taken.stop,
                )
            position = (epoch + 1) * self.size

    def samples(self, position: int) -> Iterator[tuple[int, list[list[int]]]]:
        """Yield ``(epoch, this rank's micro-batches as indices of samples)`` of each step, for
        ever.
        """
        known = -1
        for epoch, parts, *_ in self.steps(position):
            if epoch != known:
                known, order = epoch, ORDERS[self.order](self.size, self.seed, epoch)
            yield epoch, [order[part.start : part.stop].tolist() for part in parts]

    def windows(self, position: int, steps: int) -> Iterator[Window]:
        coming = islice(self.samples(position), steps)
        keys = (
            [(epoch, index) for index in part] for epoch, parts in coming for part in parts if part
        )
        # Without workers the loader would do no more than this, at 30 microseconds a batch.
        batches: Iterator[Any] = (self.collate(self.items.__getitems__(some)) for some in keys)
        if self.workers or self.pin_memory:
            batches = iter(
                self.loader(self.items, position, batch_sampler=keys, collate_fn=self.collate)
            )
        for _, mine, samples, end in islice(self.steps(position), steps):
            micros = tuple(
                self._micro_batch(len(part), next(batches) if part else None) for part in mine
            )
            self.position = end
            yield Window(micros=micros, samples=samples, end=end)

    def _micro_batch(self, examples: int, batch: Any) -> MicroBatch:
        weight = self.weigh(examples, batch) if examples else 0.0
        return self.micro_batch(batch if weight else self.filler(self._candidates()), weight)

    def _candidates(self) -> Iterator[Any]:
        for index in range(self.size):
            yield from self.items.__getitems__([(0, index)])
        raise DataError(
            f"Data.train: none of its {self.size} samples has a weight; check Task.weight and the labels"
        )

    def steps_left(self, position: int, epochs: int) -> int:
        """Count the optimizer steps from ``position`` to the end of pass number ``epochs``; below 0
        beyond it.
        """
        epoch, offset = divmod(position, self.size)
        batch, rest = self.layout.global_batch_size, self.size - offset
        if epoch >= epochs:
            return -((position - epochs * self.size) // batch)
        return (rest // batch if self.drop_last else -(-rest // batch)) + (
            epochs - epoch - 1
        ) * self.steps_per_epoch

    def epochs_at(self, position: int) -> float:
        return position / self.size

    def state(self) -> dict[str, Any]:
        # Only that of large sets is named, which older checkpoints do not know.
        return {"samples": self.position} | (
            {} if self.order == "permutation" else {"order": self.order}
        )

    def restore(self, state: Mapping[str, Any]) -> int:
        """Go on in the order of the checkpoint, whatever a new run would take.

        Raises:
            CheckpointError: it names an order that is not known.
        """
        self.order = state.get("order", "permutation")
        if self.order not in [*ORDERS]:  # what a file names may be anything
            raise CheckpointError(
                f"state.json: {self.order!r} is no order of the data; known: {', '.join(ORDERS)}"
            )
        self.position = int(state["samples"])
        return self.position
