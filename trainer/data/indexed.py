"""Windows of a data set with an index: a pure function of (seed, position, layout).

The order of an epoch follows from (seed, epoch), see ``order.py``. Each step takes the next
``global_batch_size`` samples of this order, and cuts them as ``batches.py`` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, tee
from typing import Any, NamedTuple

from ..errors import DataError
from .batches import Layout, TrainData, Window, parts_of_rank
from .now import Now, set_now
from .order import ORDERS, Order, OwnOrder, order_for, order_of

ENDLESS = 2**60  # places of an epoch that never ends


class Step(NamedTuple):
    """An optimizer step of this rank, before the samples are read.

    Args:
        epoch: of the samples.
        micro_batches: the indices of this rank's samples. A micro-batch may be empty.
        samples: of all ranks.
        now: the moment of the step.
    """

    epoch: int
    micro_batches: list[list[int]]
    samples: int
    now: Now


class IndexedData(TrainData):
    """Windows of a map-style data set that is not empty, in the order of each epoch.

    The numbers that items draw from the global generators (Python, numpy, torch) in loading
    processes differ between ranks, and are the same from run to run.
    """

    size: int

    def __init__(self, dataset: Any, layout: Layout, **settings: Any) -> None:
        super().__init__(dataset, layout, **settings)
        self.size = len(dataset)
        self.position = 0
        self.order = order_for(self.size)
        self.own_order: OwnOrder | None = getattr(dataset, "own_order", None)
        self.places = self.size  # of an epoch
        if self.own_order:
            self.own_order.lay_out(layout)
            self.places = self.own_order.places or ENDLESS
        self._steps_of_epoch = self._steps_over(self.places)
        if self.places < ENDLESS:
            self.steps_per_epoch = self._steps_of_epoch
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
            order = self._order(epoch)
            for start in range(offset, self.places, batch):
                taken = range(start, min(start + batch, self.places))
                if len(taken) < batch and self.drop_last:
                    break
                if hasattr(order, "of_rank"):
                    indices = order.of_rank(taken, self.layout)
                else:
                    parts = parts_of_rank(taken, self.layout)
                    indices = [order[part.start : part.stop].tolist() for part in parts]
                done += 1
                begin = epoch * self.places + start
                now = Now(done, begin / self.places, begin, self.items.total_steps, None, self.seed)
                yield Step(epoch, indices, len(taken), now)
            position = (epoch + 1) * self.places

    def _order(self, epoch: int) -> Order:
        if self.own_order:
            return self.own_order.of_epoch(self.seed, epoch)
        return order_of(self.order)(self.size, self.seed, epoch)

    def windows(self, position: int, steps: int, *, done: int = 0) -> Iterator[Window]:
        # Loading processes read ahead of the training. tee keeps the steps in between.
        ahead, current = tee(islice(self.steps(position, done), steps))
        batches = self._batches(position, ahead)
        for step in current:
            set_now(step.now)  # for Task.weight and padding batches, also if another process loads
            micros = []
            for indices in step.micro_batches:
                batch = next(batches) if indices else None
                items = (self.items.__getitems__([(0, i, None)])[0] for i in range(self.size))
                micros.append(self.micro_batch(len(indices), batch, items))

            self.position = step.now.samples + step.samples
            yield Window(micros, step.samples, self.position, step.now)

    def _batches(self, position: int, steps: Iterable[Step]) -> Iterator[Any]:
        """Yield the batches of all micro-batches that are not empty."""
        keys = (
            [(step.epoch, index, step.now) for index in indices]
            for step in steps
            for indices in step.micro_batches
            if indices
        )
        if self.workers or self.pin_memory:
            return iter(
                self.loader(self.items, position, batch_sampler=keys, collate_fn=self.collate)
            )
        # Without workers the loader would do no more, and cost 30 microseconds a batch.
        return (self.collate(self.items.__getitems__(keys_of_batch)) for keys_of_batch in keys)

    def steps_left(self, position: int, epochs: int) -> int:
        """Return the optimizer steps from ``position`` to the end of ``epochs`` passes.

        The number is negative if the position is beyond that end.
        """
        epoch, offset = divmod(position, self.places)
        if epoch >= epochs:
            return -((position - epochs * self.places) // self.layout.global_batch_size)

        return self._steps_over(self.places - offset) + (epochs - epoch - 1) * self._steps_of_epoch

    def epochs_at(self, position: int) -> float:
        return position / self.places

    def notices(self, steps: int) -> list[str]:
        samples = steps * self.layout.global_batch_size
        return self.own_order.notices(self.seed, samples) if self.own_order else []

    def logged(self, position: int) -> dict[str, float]:
        if not self.own_order:
            return {}
        before, self._logged = self._logged, position
        return self.own_order.logged(self.seed, before, position)

    def state(self) -> dict[str, Any]:
        state = {"samples": self.position, "order": self.order}
        return state | {"own": self.own_order.state()} if self.own_order else state

    def restore(self, state: Mapping[str, Any]) -> int:
        """Continue in the order of the checkpoint, even if a new run would take another order."""
        assert "stream" not in state, "the training data was a stream, and is a data set"
        self.order = state.get("order", "permutation")  # no name in checkpoints of old runs
        assert self.order in ORDERS, "no order of the data"
        self.position = self._logged = state["samples"]
        if self.own_order:
            self.own_order.restore(state["own"], self.position)
        return self.position
