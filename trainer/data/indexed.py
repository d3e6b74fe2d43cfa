"""Windows of a data set with an index: a pure function of (seed, position, layout).

The order of an epoch follows from (seed, epoch), see ``order.py``. Each step takes the next
``global_batch_size`` samples of this order, and cuts them as ``batches.py`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, tee
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError, TrainerError
from .augment import Items, Key
from .batches import Layout, TrainData, Window
from .now import Now, set_now
from .order import ENDLESS, Permuted


class Step(NamedTuple):
    """An optimizer step of this rank, before the samples are read.

    Args:
        epoch: of the samples.
        micro_batches: the indices of this rank's samples, cut by the process that reads them. A
            micro-batch may be empty.
        samples: of all ranks.
        now: the moment of the step.
    """

    epoch: int
    micro_batches: list[list[list[int]]]
    samples: int
    now: Now


class IndexedData(TrainData):
    """Windows of a map-style data set that is not empty, in the order of each epoch.

    The numbers that items draw from the global generators (Python, numpy, torch) in loading
    processes differ between ranks, and are the same from run to run.
    """

    size: int

    def __init__(self, dataset: Any, layout: Layout, **settings: Any) -> None:
        self.size = len(dataset)
        super().__init__(dataset, layout, Permuted(self.size), **settings)
        self.position = 0
        self.places: int = self.order.places  # of an epoch
        if self.places < ENDLESS:
            self.steps_per_epoch = self._steps_over(self.places)
        self._logged = 0
        if self.steps_per_epoch == 0:
            raise DataError(
                f"drop_last: {self.places} samples do not fill a global batch of "
                f"{layout.global_batch_size}. Lower the batch"
            )

    def _steps_over(self, samples: int) -> int:
        """Return the optimizer steps over the last ``samples`` of an epoch."""
        whole, rest = divmod(samples, self.layout.global_batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def steps(self, position: int, done: int = 0) -> Iterator[Step]:
        """Yield all optimizer steps from ``position`` on, after ``done`` steps, without end."""
        batch = self.layout.global_batch_size
        while True:
            epoch, offset = divmod(position, self.places)
            order = self.order.of_epoch(self.seed, epoch)
            for start in range(offset, self.places, batch):
                taken = range(start, min(start + batch, self.places))
                if len(taken) < batch and self.drop_last:
                    break
                indices = [
                    [
                        order(np.array(share, np.int64)).tolist()
                        for share in self.order.shares(part, self.layout)
                    ]
                    for part in self.order.parts(taken, self.layout)
                ]
                done += 1
                begin = epoch * self.places + start
                now = self.items.moment(done, begin / self.places, begin)
                yield Step(epoch, indices, len(taken), now)
            position = (epoch + 1) * self.places

    def windows(self, position: int, steps: int, *, done: int = 0) -> Iterator[Window]:
        # Loading processes read ahead of the training. tee keeps the steps in between.
        ahead, current = tee(islice(self.steps(position, done), steps))
        batches = self._batches(position, ahead)
        for step in current:
            set_now(step.now)  # for Task.weight and padding batches, also if another process loads
            micros = []
            for micro_batch in step.micro_batches:
                examples = sum(map(len, micro_batch))
                batch = next(batches) if examples else None
                items = (self.items.__getitems__([(0, i, None)])[0] for i in range(self.size))
                micros.append(self.micro_batch(examples, batch, items))

            self.position = step.now.samples + step.samples
            yield Window(micros, step.samples, self.position, step.now)

    def _batches(self, position: int, steps: Iterable[Step]) -> Iterator[Any]:
        """Yield the batches of all micro-batches that are not empty."""
        shares = (
            [(step.epoch, index, step.now) for index in share]
            for step in steps
            for micro_batch in step.micro_batches
            if any(micro_batch)
            for share in micro_batch
        )
        readers = self.order.readers
        if readers > 1:
            read = self.loaded(_Collated(self.items, list), position, batch_sampler=shares)
            return map(self.collate, iter(lambda: [*chain(*islice(read, readers))], []))
        collated = _Collated(self.items, self.collate)
        if self.workers or self.pin_memory:
            return self.loaded(collated, position, batch_sampler=shares)
        # Without workers the loader would do no more, and cost 30 microseconds a batch.
        return map(collated.read, shares)

    def steps_left(self, position: int, epochs: int) -> int:
        """Return the optimizer steps from ``position`` to the end of ``epochs`` passes.

        The number is negative if the position is beyond that end.
        """
        epoch, offset = divmod(position, self.places)
        of_whole_epochs = (epochs - epoch - 1) * self._steps_over(self.places)
        return self._steps_over(self.places - offset) + of_whole_epochs

    def epochs_at(self, position: int) -> float:
        return position / self.places

    def parts(self, begin: int, end: int) -> list[list[int]]:
        return [[*chain(*shares)] for shares in next(self.steps(begin)).micro_batches]

    def logged(self, position: int) -> dict[str, float]:
        before, self._logged = self._logged, position
        return self.order.logged(before, position)  # type: ignore[no-any-return]

    def state(self) -> dict[str, Any]:
        return {"samples": self.position, "order": self.order.state()}

    def restore(self, state: Mapping[str, Any]) -> int:
        assert "stream" not in state, "the training data was a stream, and is a data set"
        self.position = self._logged = state["samples"]
        self.order.restore(state["order"], self.position)
        return self.position


@dataclass(eq=False)
class _Collated:
    """Batches of items by their keys."""

    items: Items
    collate: Callable[[Any], Any]

    def read(self, keys: Sequence[Key]) -> Any:
        return self.collate(self.items.__getitems__(keys))

    def __getitems__(self, keys: Sequence[Key]) -> Any:
        """Return a batch, or the error of the trainer."""
        try:
            return self.read(keys)
        except TrainerError as error:
            return error
