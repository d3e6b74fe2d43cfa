"""Streams: data that is read from its beginning, in its own order.

Every rank reads the whole stream and keeps its share of each global window, so the same samples meet at the
same step on every layout, as with a map-style data set. The price: each rank reads (not collates) everything.
A stream that is divided over ranks by itself would be divided twice: it is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from ..errors import ConfigError, DataError, Origin, Problem
from .alike import blocks, digest
from .batches import Layout, TrainData, Window, copied, share

if TYPE_CHECKING:
    from ..config.train_config import TrainConfig

Read = tuple[list[tuple[Any, float]], int, dict[str, Any], int]


class StreamData(TrainData):
    """Windows of micro-batches of a stream.

    The end of the stream is the end of an epoch: its last step may be short (``drop_last`` leaves that out), and
    the next epoch reads the stream anew, after ``set_epoch(epoch)`` where it has that.

    Args:
        dataset: torch's or Hugging Face's IterableDataset, or any iterable.
        augment: changes an item by the randomness of its (seed, epoch, number in the stream).
        workers: 0, or 1 to read ahead in another process.
    """

    def __init__(self, dataset: Iterable[Any], layout: Layout, **settings: Any) -> None:
        super().__init__(dataset, layout, **settings)
        assert self.workers <= 1, "several workers would each read the whole stream"
        self._state: dict[str, Any] = {"samples": 0, "epoch": 0, "offset": 0, "stream": None}

    def windows(self, position: int, steps: int) -> Iterator[Window]:
        assert position == self._state["samples"], "a stream goes on where it is; restore() moves it"
        loader = self.loader(_Reader(self, self._state), position, batch_size=None, collate_fn=_as_it_is)
        for read in islice(loader, steps):
            if isinstance(read, DataError):
                raise read
            batches, samples, self._state, seen = read
            micros = tuple(self.micro_batch(batch, weight) for batch, weight in batches)
            yield Window(micros=micros, samples=samples, end=self._state["samples"], read=seen)

    def epochs_at(self, position: int) -> float:
        return float(self._state["epoch"])

    def state(self) -> dict[str, Any]:
        """Return where the last window ended, as JSON, with the stream's own ``state_dict()`` where it has one.

        Hugging Face streams lose what is in a shuffle buffer when they are restored: they go on with other samples.
        """
        return copy.deepcopy(self._state)

    def restore(self, state: Mapping[str, Any]) -> int:
        self._state = copy.deepcopy(dict(state))
        return int(state["samples"])

    def lost_on_resume(self) -> str:
        held = _held_back(self.items.dataset) if self._state["stream"] is not None else 0
        text = f"the stream's shuffle buffer was not saved: up to {held:,} samples of this epoch are not seen again"
        return text if held else ""

    def skips(self) -> int:
        # Those of this epoch, where the stream keeps no state of its own.
        return 0 if self._state["stream"] is not None else int(self._state["offset"])


class _Reader(IterableDataset[Any]):
    """Reads global windows and makes this rank's micro-batches of them; in a worker process, if there is one."""

    def __init__(self, data: StreamData, state: Mapping[str, Any]) -> None:
        self.data, self.start = data, state

    def __iter__(self) -> Iterator[Read | DataError]:
        data, stream = self.data, self.data.items.dataset
        samples, epoch, offset = (int(self.start[key]) for key in ("samples", "epoch", "offset"))
        batch = data.layout.global_batch_size
        own_state = getattr(stream, "state_dict", None)
        while True:
            skip = _begin(stream, epoch, offset, self.start["stream"] if offset else None)
            for block in blocks(stream, batch, data.seed, epoch, offset=offset - skip, skip=skip):
                if len(block) < batch and data.drop_last:
                    break
                seen = 1 + digest(block[:2]) if samples == self.start["samples"] else 0
                numbers = range(offset, offset + len(block))
                offset, samples = numbers.stop, samples + len(block)
                after = {"samples": samples, "epoch": epoch, "offset": offset, "stream": own_state and own_state()}
                if len(block) < batch:  # the end: the state of a stream that was read to it may mean its beginning
                    after |= {"epoch": epoch + 1, "offset": 0, "stream": None}
                yield self._parts(block, epoch, numbers), len(block), after, seen
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
        data, augmented, pairs = self.data, self.data.items.augmented, [*zip(block, numbers, strict=True)]
        parts = []
        # Now, for a collate or an augmentation may change items, and these come once.
        data.lend(augmented(copied(item), epoch, number) for item, number in pairs)
        for part in share(range(len(block)), data.layout):
            items = [augmented(item, epoch, number) for item, number in pairs[part.start : part.stop]]
            batch = data.collate(items) if items else None
            weight = data.weigh(len(items), batch) if items else 0.0
            parts.append((batch if weight else data.filler(), weight))
        return parts


def _begin(stream: Any, epoch: int, offset: int, state: Any) -> int:
    """Set a stream to an epoch, or where its state left it; returns the samples to read over up to ``offset``."""
    if hasattr(stream, "set_epoch"):
        stream.set_epoch(epoch)
    if state is None:
        return offset
    stream.load_state_dict(copy.deepcopy(state))
    return 0


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
    unknown = "a stream has no known length; use"
    rules = {
        "epochs": (config.epochs is not None, f"{unknown} max_steps"),
        "workers": (config.workers > 1, "a stream is read in order, by one process a rank; use 0 or 1"),
        "eval_every": (isinstance(config.eval_every, str), f"{unknown} a number of steps"),
        "save_every": (isinstance(config.save_every, str), f"{unknown} a number of steps"),
    }
    if broken := [(key, rule) for key, (is_broken, rule) in rules.items() if is_broken]:
        at = {key: origins.get(key, Origin("TrainConfig", key=key)) for key in rules}
        raise ConfigError([Problem(origin=at[key], value=getattr(config, key), rule=rule) for key, rule in broken])
