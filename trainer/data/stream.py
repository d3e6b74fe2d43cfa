"""Windows of a stream: data that can only be read from the beginning, in a fixed order.

Every rank reads the whole stream and keeps a part of each global batch, so the same samples meet at
the same step on every layout, as with a data set that has an index. The price: each rank reads (not
collates) everything. A stream that divides itself over the ranks would be divided twice. Such a
stream is refused (``alike.py``).

A resumed run sets the stream's ``state_dict``. A stream that has none, or that shuffles in a
buffer, is read over from the beginning of the epoch, which is slow and exact.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from torch.utils.data import IterableDataset

from ..errors import DataError, TrainerError
from ..private.datasets import has_shuffle_buffer
from .batches import Layout, MicroBatch, TrainData, Window
from .blocks import blocks
from .digest import digest
from .now import set_now
from .order import OwnOrder


class State(NamedTuple):
    """The end of a window, or the beginning of an epoch.

    Args:
        samples: the position.
        offset: the samples of this epoch.
        stream: the stream's ``state_dict``. None if the stream has no complete state.
        began: a checksum of the epoch's first sample, which must be the same when samples are read
            over.
    """

    samples: int = 0
    epoch: int = 0
    offset: int = 0
    stream: Any = None
    began: int = 0


class StreamData(TrainData, IterableDataset[Any]):
    """Windows of micro-batches of a stream, which torch's loader iterates, maybe in a process.

    The end of the stream is the end of an epoch, whose last step may be short. The next epoch reads
    the stream anew, after ``set_epoch(epoch)`` if the stream has this method.

    ``augment`` gets a generator of (seed, epoch, number in the stream), and ``workers`` is 0, or 1
    to read ahead in another process.
    """

    def __init__(self, dataset: Iterable[Any], layout: Layout, **settings: Any) -> None:
        super().__init__(dataset, layout, OwnOrder(), **settings)
        self._state = State()
        self._done = 0  # steps at that state

    def windows(self, position: int, steps: int, *, done: int = 0) -> Iterator[Window]:
        assert position == self._state.samples, "restore() moves a stream, not a position"
        self._done = done
        read = self.loaded(self, position, batch_size=None)
        for window, self._state in islice(read, steps):
            yield window

    def parts(self, begin: int, end: int) -> Sequence[Sequence[int]]:
        taken = range(begin, end)
        return self.order.parts(taken, self.layout)  # type: ignore[no-any-return]

    def notices(self, steps: int) -> list[str]:
        if not has_shuffle_buffer(self.items.dataset):
            return super().notices(steps)
        return [
            "Data.train has a shuffle buffer, so a resume reads its epoch again: "
            "trainer.blocks(files) shuffles without a buffer, and continues at once"
        ]

    def epochs_at(self, position: int) -> float:
        return float(self._state.epoch)

    def gather(self, gather: Callable[[Any], list[Any]]) -> None:
        if hasattr(self.items.dataset, "batches"):  # the cursors of lanes
            cursors = sorted({*map(tuple, chain(*gather(self._state.stream or ())))})
            self._state = self._state._replace(stream=cursors)

    def state(self) -> dict[str, Any]:
        return copy.deepcopy(self._state._asdict()) | {"order": self.order.state()}

    def restore(self, state: Mapping[str, Any]) -> int:
        assert "stream" in state, "the training data was a data set, and is a stream"
        self.order.restore(state["order"], state["samples"])
        self._state = State(*(state[key] for key in State._fields))
        return self._state.samples

    def samples_to_read_over(self) -> int:
        return self._state.offset if self._state.stream is None else 0

    def __iter__(self) -> Iterator[tuple[Window, State] | TrainerError]:
        """Yield this rank's windows, each with the state that follows, or an error at the end."""
        state, step = self._state, self._done
        try:
            while True:
                begin = state
                for window, state in self._epoch(begin, step):
                    step = window.now.step
                    yield window, state

                if state is begin and begin.offset == 0:
                    raise DataError(
                        f"Data.train gave no global batch in epoch {begin.epoch}, after "
                        f"{begin.samples} samples: it is empty, smaller than a global batch with "
                        "drop_last, or cannot be read again. Lower max_steps, or give an object "
                        "whose __iter__ starts anew"
                    )
                if state.offset > 0:
                    state = State(state.samples, state.epoch + 1)
        except TrainerError as error:
            yield error

    def _epoch(self, start: State, step: int) -> Iterator[tuple[Window, State]]:
        """Yield the windows from a state to the end of its epoch."""
        stream = self.items.dataset
        has_state = hasattr(stream, "state_dict") and not has_shuffle_buffer(stream)
        batch_size = self.layout.global_batch_size
        samples, epoch, trained, state_before, began = start

        if hasattr(stream, "set_epoch"):
            stream.set_epoch(epoch)
        end = 0  # the number of the sample that the stream yields next
        if state_before is not None:
            stream.load_state_dict(copy.deepcopy(state_before))
            end = trained
        if hasattr(stream, "batches"):
            read = stream.batches(self.layout, self.seed, end)
        else:
            read = blocks(stream, batch_size, self.seed, epoch, offset=end, stop=trained)
        for block in read:
            begin, end = end, end + len(block)
            if begin == 0:
                began_before, began = began, 1 + digest(block[0])
                if trained and began_before != began:
                    raise DataError(
                        "Data.train does not begin with the sample with which the resumed run "
                        "began this epoch: give a seed to its shuffle, and keep workers as they "
                        "were"
                    )
            if end <= trained:
                continue  # read over
            is_short = len(block) < batch_size
            if is_short and self.drop_last:
                return

            step += 1
            moment = self.items.moment(step, float(epoch), samples)
            set_now(moment)
            checksum = 1 + digest(block[:2]) if samples == start.samples else 0
            samples += len(block)
            if is_short:  # the state of a stream at the end may mean the beginning
                state = State(samples, epoch + 1)
            else:
                of_stream = stream.state_dict() if has_state else None
                state = State(samples, epoch, end, of_stream, began)
            micros = self._micro_batches(block, epoch, begin)
            yield Window(micros, len(block), samples, moment, checksum), state

    def _micro_batches(self, block: Sequence[Any], epoch: int, begin: int) -> list[MicroBatch]:
        """Return this rank's micro-batches of a global batch, whose first sample is ``begin``.

        The samples of other ranks may be missing.
        """

        def item(number: int) -> Any:
            return self.items.augmented(block[number - begin], epoch, number)

        read = (number for number, row in enumerate(block, begin) if row is not None)
        # Before a collate, which may change items in place: a stream yields each item only once.
        self.choose_padding_item(map(item, read))

        micros = []
        for part in self.parts(begin, begin + len(block)):
            items = [*map(item, part)]
            micros.append(self.micro_batch(len(items), self.collate(items) if items else None))
        return micros
