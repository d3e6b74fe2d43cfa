"""Windows of a data set with an index: a pure function of (seed, position, layout).

The order of an epoch follows from (seed, epoch), see ``order.py``. Each step takes the next
``global_batch_size`` samples of it, which are cut into micro-batches and ranks, see ``batches.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from ..errors import CheckpointError, DataError
from .augment import Key
from .batches import Layout, MicroBatch, TrainData, Window, parts_of_rank, sized
from .now import Now, set_now
from .order import ORDERS, order_for


class Step(NamedTuple):
    """One optimizer step of this rank, before its samples are read.

    Args:
        epoch: which its samples belong to.
        micro_batches: of this rank, as places in the order of the epoch; some may be empty.
        samples: of all ranks.
        end: the position after this step.
    """

    epoch: int
    micro_batches: list[range]
    samples: int
    end: int

    @property
    def begin(self) -> int:
        """Return the position of its first sample."""
        return self.end - self.samples


class IndexedData(TrainData):
    """Windows of a map-style data set, in the order of each epoch. It must not be empty.

    What items draw from the global generators (Python, numpy, torch) in loading processes differs
    between ranks, and is the same from run to run.
    """

    size: int
    steps_per_epoch: int

    def __init__(self, dataset: Any, layout: Layout, **settings: Any) -> None:
        super().__init__(dataset, layout, **settings)
        self.size = sized(dataset, "train")
        self.position = 0
        self.order = order_for(self.size)
        self.steps_per_epoch = self._steps_over(self.size)
        if self.steps_per_epoch == 0:
            raise DataError(
                f"drop_last: {self.size} samples do not fill one global batch of "
                f"{layout.global_batch_size}; lower the batch"
            )

    def _steps_over(self, samples: int) -> int:
        """Return the optimizer steps over the last ``samples`` of an epoch."""
        whole, rest = divmod(samples, self.layout.global_batch_size)
        if rest == 0 or self.drop_last:
            return whole
        return whole + 1

    def steps(self, position: int) -> Iterator[Step]:
        """Yield all optimizer steps from ``position`` on, without end.

        The order of an epoch is not computed here, so this is cheap.
        """
        batch = self.layout.global_batch_size
        while True:
            epoch, offset = divmod(position, self.size)
            for start in range(offset, self.size, batch):
                taken = range(start, min(start + batch, self.size))
                if len(taken) < batch and self.drop_last:
                    break
                yield Step(
                    epoch=epoch,
                    micro_batches=list(parts_of_rank(taken, self.layout)),
                    samples=len(taken),
                    end=epoch * self.size + taken.stop,
                )
            position = (epoch + 1) * self.size

    def samples(self, position: int) -> Iterator[tuple[Step, list[list[int]]]]:
        """Yield each step, and this rank's micro-batches of it as indices of samples."""
        order_of_epoch = -1
        for step in self.steps(position):
            if step.epoch != order_of_epoch:
                order = ORDERS[self.order](self.size, self.seed, step.epoch)
                order_of_epoch = step.epoch

            micro_batches = []
            for places in step.micro_batches:
                micro_batches.append(order[places.start : places.stop].tolist())
            yield step, micro_batches

    def windows(self, position: int, steps: int, *, done: int = 0) -> Iterator[Window]:
        batches = self._batches(position, steps, done)
        total_steps = self.total_steps(done, steps)
        for number, step in enumerate(islice(self.steps(position), steps), done + 1):
            moment = self._moment(number, step.begin, total_steps)
            set_now(moment)  # for Task.weight and padding batches; batches may come from elsewhere
            micros = []
            for places in step.micro_batches:
                batch = next(batches) if places else None
                micros.append(self._micro_batch(len(places), batch))

            self.position = step.end
            yield Window(micros=tuple(micros), samples=step.samples, end=step.end, now=moment)

    def _moment(self, number: int, begin: int, total_steps: int) -> Now:
        """Return where the run is in a step that begins at a position."""
        return Now(number, begin / self.size, begin, total_steps, None, self.seed)

    def _batches(self, position: int, steps: int, done: int) -> Iterator[Any]:
        """Yield the batches of all micro-batches that are not empty.

        Loading processes read ahead of the training, so this goes through the steps on its own.
        """
        keys = self._keys(position, steps, done)
        if self.workers or self.pin_memory:
            loader = self.loader(self.items, position, batch_sampler=keys, collate_fn=self.collate)
            return iter(loader)
        # Without workers the loader would do no more than this, at 30 microseconds a batch.
        return (self.collate(self.items.__getitems__(keys_of_batch)) for keys_of_batch in keys)

    def _keys(self, position: int, steps: int, done: int) -> Iterator[list[Key]]:
        """Yield the keys of ``Items`` of each batch."""
        total_steps = self.total_steps(done, steps)
        numbered = enumerate(islice(self.samples(position), steps), done + 1)
        for number, (step, micro_batches) in numbered:
            moment = self._moment(number, step.begin, total_steps)
            for indices in micro_batches:
                if indices:
                    yield [(step.epoch, index, moment) for index in indices]

    def _micro_batch(self, examples: int, batch: Any) -> MicroBatch:
        """Make a micro-batch; a padding batch where there are no examples, or none with weight."""
        weight = 0.0
        if examples:
            weight = self.weigh(examples, batch)
        if weight == 0:
            batch = self.padding_batch(self._padding_candidates())
        return self.micro_batch(batch, weight)

    def _padding_candidates(self) -> Iterator[Any]:
        for index in range(self.size):
            yield from self.items.__getitems__([(0, index, None)])
        raise DataError(
            f"Data.train: none of its {self.size} samples has a weight; "
            "check Task.weight and the labels"
        )

    def steps_left(self, position: int, epochs: int) -> int:
        """Return the optimizer steps from ``position`` to the end of ``epochs`` passes.

        It is negative where the position is beyond that end.
        """
        epoch, offset = divmod(position, self.size)
        if epoch >= epochs:
            return -((position - epochs * self.size) // self.layout.global_batch_size)

        later_epochs = epochs - epoch - 1
        return self._steps_over(self.size - offset) + later_epochs * self.steps_per_epoch

    def epochs_at(self, position: int) -> float:
        return position / self.size

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = {"samples": self.position}
        if self.order != "permutation":  # older checkpoints name no order, and have this one
            state["order"] = self.order
        return state

    def restore(self, state: Mapping[str, Any]) -> int:
        """Continue in the order of the checkpoint, also where a new run would take another one.

        Raises:
            CheckpointError: it names an unknown order.
        """
        self.order = state.get("order", "permutation")
        if self.order not in list(ORDERS):  # a list: the file may hold what cannot be hashed
            raise CheckpointError(
                f"state.json: {self.order!r} is no order of the data; known: {', '.join(ORDERS)}"
            )
        self.position = int(state["samples"])
        return self.position
