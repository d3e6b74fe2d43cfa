"""Streams: data that is read from its beginning, in its own order.

Every rank reads the whole stream and keeps its share of each global window, so the same samples meet at the
same step on every layout, as with a map-style data set. The price: each rank reads (not collates) everything.
A stream that is divided over ranks by itself would be divided twice: give it undivided.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader, IterableDataset, default_collate

from ..errors import ConfigError, DataError, Origin, Problem
from .augment import Augment, Items, generator_of
from .indexed import Layout, Micro, Window, share

if TYPE_CHECKING:
    from ..config.train_config import TrainConfig

Read = tuple[list[tuple[Any, float]], int, dict[str, Any]]


class StreamData:
    """Windows of micro-batches of a stream; stands in for ``TrainData``.

    The end of the stream is the end of an epoch: its last step may be short (``drop_last`` leaves that out), and
    the next epoch reads the stream anew, after ``set_epoch(epoch)`` where it has that.

    Args:
        dataset: torch's or Hugging Face's IterableDataset, or any iterable.
        augment: changes an item by the randomness of its (seed, epoch, number in the stream).
        workers: 0, or 1 to read ahead in another process.
    """

    size = steps_per_epoch = None

    def __init__(
        self,
        dataset: Iterable[Any],
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
        assert workers <= 1, "several workers would each read the whole stream"
        self.items = Items(dataset, seed=seed, augment=augment)
        self.layout, self.seed, self.drop_last = layout, seed, drop_last
        self.weight_of, self.collate = weight_of, collate or default_collate
        self.workers, self.pin_memory = workers, pin_memory
        self._state: dict[str, Any] = {"samples": 0, "epoch": 0, "offset": 0, "stream": None}

    def windows(self, position: int, steps: int) -> Iterator[Window]:
        """The next ``steps`` windows from ``position``, which is where the last one ended or ``restore`` went."""
        assert position == self._state["samples"], "a stream goes on where it is; restore() moves it"
        loader = DataLoader(
            _Reader(self, self._state),
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=self.workers,
            pin_memory=self.pin_memory,
            generator=generator_of(self.seed, self.layout.rank, position),
        )
        for read in islice(loader, steps):
            if isinstance(read, DataError):
                raise read
            batches, samples, self._state = read
            micros = tuple(Micro(batch=batch, weight=weight) for batch, weight in batches)
            yield Window(micros=micros, samples=samples, end=self._state["samples"])

    def epochs_at(self, position: int) -> float:
        """Finished passes over the stream; the part of the current one is not known."""
        return float(self._state["epoch"])

    def state(self) -> dict[str, Any]:
        """Where the last window ended, as JSON, with the stream's own ``state_dict()`` where it has one.

        Hugging Face streams lose what is in a shuffle buffer when they are restored: they go on with other samples.
        """
        return copy.deepcopy(self._state)

    def restore(self, state: Mapping[str, Any]) -> int:
        """Go on behind the window that ``state`` was taken after, on any layout; returns the position."""
        self._state = copy.deepcopy(dict(state))
        return int(state["samples"])

    def lost_on_resume(self) -> str:
        """What a resumed stream does not give again, in words; empty if nothing is lost."""
        held = _held_back(self.items.dataset) if self._state["stream"] is not None else 0
        return (
            f"the stream's shuffle buffer was not saved: up to {held:,} samples of this epoch are not seen again"
            if held
            else ""
        )

    @property
    def skips(self) -> int:
        """Samples that the next window reads over first: those of this epoch, if the stream keeps no state."""
        return 0 if self._state["stream"] is not None else int(self._state["offset"])


class _Reader(IterableDataset[Any]):
    """Reads global windows and makes this rank's micro-batches of them; in a worker process, if there is one."""

    def __init__(self, data: StreamData, state: Mapping[str, Any]) -> None:
        self.data, self.start = data, state
        self._lender: Any = None

    def __iter__(self) -> Iterator[Read | DataError]:
        data, stream = self.data, self.data.items.dataset
        samples, epoch, offset = (int(self.start[key]) for key in ("samples", "epoch", "offset"))
        batch = data.layout.global_batch_size
        own_state = getattr(stream, "state_dict", None)
        while True:
            for block in _blocks(stream, epoch, offset, self.start["stream"] if offset else None, batch):
                if len(block) < batch and data.drop_last:
                    break
                numbers = range(offset, offset + len(block))
                offset, samples = numbers.stop, samples + len(block)
                after = {"samples": samples, "epoch": epoch, "offset": offset, "stream": own_state and own_state()}
                if len(block) < batch:  # the end: the state of a stream that was read to it may mean its beginning
                    after |= {"epoch": epoch + 1, "offset": 0, "stream": None}
                yield self._parts(block, epoch, numbers), len(block), after
            if offset == 0:
                yield DataError(self._nothing(epoch, samples))
                return
            epoch, offset = epoch + 1, 0

    def _nothing(self, epoch: int, samples: int) -> str:
        if self.data.drop_last:
            return f"drop_last: Data.train did not fill one global batch of {self.data.layout.global_batch_size}"
        if epoch == 0:
            return "Data.train is an empty stream"
        return (
            f"Data.train ended after {samples} samples and cannot be read again; lower max_steps, or give an object "
            "whose __iter__ starts anew"
        )

    def _parts(self, block: Sequence[Any], epoch: int, numbers: range) -> list[tuple[Any, float]]:
        data = self.data
        parts = []
        for part in share(range(len(block)), data.layout):
            items = [data.items.augmented(block[at], epoch, numbers[at]) for at in part]
            batch = data.collate(items) if items else None
            weight = float(len(items) if data.weight_of is None or not items else data.weight_of(batch))
            parts.append((batch if weight else self._borrowed(block, epoch, numbers), weight))
        return parts

    def _borrowed(self, block: Sequence[Any], epoch: int, numbers: range) -> Any:
        """Lend a sample with weight, kept from the first window that needed one; none there: the step has no weight."""
        data = self.data
        if self._lender is None:
            for at, number in enumerate(numbers):
                item = data.items.augmented(block[at], epoch, number)
                if data.weight_of is None or data.weight_of(data.collate([copy.deepcopy(item)])) > 0:
                    self._lender = item
                    break
        item = block[0] if self._lender is None else self._lender
        count = min(2, data.layout.micro_batch_size)  # BatchNorm wants more than one value
        return data.collate([copy.deepcopy(item) for _ in range(count)])  # some collates change their items


def _blocks(stream: Any, epoch: int, offset: int, state: Any, size: int) -> Iterator[list[Any]]:
    """Lists of ``size`` samples of one epoch behind ``offset``, the last one shorter."""
    set_epoch = getattr(stream, "set_epoch", None)
    if set_epoch is not None:
        set_epoch(epoch)
    if state is not None:
        stream.load_state_dict(copy.deepcopy(state))
        offset = 0
    rest = islice(stream, offset, None)
    while block := list(islice(rest, size)):
        yield block


def _held_back(stream: Any) -> int:
    """Count the samples that a Hugging Face stream holds back to shuffle them, which its state does not keep."""
    waiting, held = [getattr(stream, "_ex_iterable", None)], 0
    while waiting:
        stage = waiting.pop()
        if type(stage).__name__ == "BufferShuffledExamplesIterable":
            held += int(getattr(stage, "buffer_size", 0))
        waiting += [one for one in (getattr(stage, "ex_iterable", None), *getattr(stage, "ex_iterables", ())) if one]
    return held


def _as_it_is(read: Any) -> Any:
    return read


def refuse_what_streams_cannot(config: TrainConfig, origins: Mapping[str, Origin]) -> None:
    """Raise ``ConfigError`` for settings that need a length, or more than one reader."""
    rules = {
        "epochs": (config.epochs is not None, "a stream has no known length; use max_steps"),
        "workers": (config.workers > 1, "a stream is read in order, by one process a rank; use 0 or 1"),
    }
    for key in ("eval_every", "save_every"):
        rules[key] = isinstance(getattr(config, key), str), "a stream has no known length; use a number of steps"
    problems = [
        Problem(origin=origins.get(key, Origin("TrainConfig", key=key)), value=getattr(config, key), rule=rule)
        for key, (broken, rule) in rules.items()
        if broken
    ]
    if problems:
        raise ConfigError(problems)
