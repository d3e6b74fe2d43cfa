"""Streams: data that is read from its beginning, in its own order.

Every rank reads the whole stream and keeps its share of each global window, so the same samples
meet at the same step on every layout, as with a map-style data set. The price: each rank reads (not
collates) everything. A stream that is divided over ranks by itself would be divided twice: it is
refused.

A resumed run goes on behind the last sample that it trained. A stream with a state of its own is
set to it; any other, and one with a shuffle buffer, whose content no state holds, is read over from
the beginning of its epoch: slow, exact.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from ..errors import ConfigError, DataError, Origin, Problem
from .batches import Layout, TrainData, Window, copied, share
from .blocks import blocks
from .digest import digest

if TYPE_CHECKING:
    from ..config.train_config import TrainConfig

Read = tuple[list[tuple[Any, float]], int, dict[str, Any], int]
_OTHER_STREAM = (
    "Data.train does not begin with the sample with which the resumed run began this epoch, so those that it has "
    "not trained yet are not known: give what shuffles it a seed, and keep workers as it was (datasets shuffles "
    "otherwise in a loading process). Where only noise was drawn, allow_config_change: true goes on"
)


class StreamData(TrainData):
    """Windows of micro-batches of a stream.

    The end of the stream is the end of an epoch: its last step may be short (``drop_last`` leaves
    that out), and the next epoch reads the stream anew, after ``set_epoch(epoch)`` where it has
    that.

    Args:
        dataset: torch's or Hugging Face's IterableDataset, or any iterable.
        augment: changes an item by the randomness of its (seed, epoch, number in the stream).
        workers: 0, or 1 to read ahead in another process.
    """

    def __init__(self, dataset: Iterable[Any], layout: Layout, **settings: Any) -> None:
        super().__init__(dataset, layout, **settings)
        assert self.workers <= 1, "several workers would each read the whole stream"
        self._state: dict[str, Any] = {
            "samples": 0,
            "epoch": 0,
            "offset": 0,
            "stream": None,
            "began": 0,
        }

    def windows(self, position: int, steps: int) -> Iterator[Window]:
        assert position == self._state["samples"], (
            "a stream goes on where it is; restore() moves it"
        )
        loader = self.loader(
            _Reader(self, self._state), position, batch_size=None, collate_fn=_as_it_is
        )
        for read in islice(loader, steps):
            if isinstance(read, DataError):
                raise read
            batches, samples, self._state, seen = read
            micros = tuple(self.micro_batch(batch, weight) for batch, weight in batches)
            yield Window(micros=micros, samples=samples, end=self._state["samples"], digest=seen)

    def epochs_at(self, position: int) -> float:
        return float(self._state["epoch"])

    def state(self) -> dict[str, Any]:
        """Return where the last window ended, as JSON, with the stream's own ``state_dict()`` where
        that is all of it.

        ``began`` is a checksum of the epoch's first sample: what is read over must be what was read
        before.
        """
        return copy.deepcopy(self._state)

    def restore(self, state: Mapping[str, Any]) -> int:
        self._state = {
            "began": 0,
            **copy.deepcopy(dict(state)),
        }  # 0, as in older checkpoints: nobody knows
        if has_shuffle_buffer(self.items.dataset):
            self._state["stream"] = (
                None  # older checkpoints have one, of which the buffer is missing
            )
        return int(state["samples"])

    def skips(self) -> int:
        # Those of this epoch, where the stream keeps no state of its own.
        return 0 if self._state["stream"] is not None else int(self._state["offset"])


class _Reader(IterableDataset[Any]):
    """Reads global windows and makes this rank's micro-batches of them; in a worker process, if
    there is one.
    """

    def __init__(self, data: StreamData, state: Mapping[str, Any]) -> None:
        self.data, self.start = data, state

    def __iter__(self) -> Iterator[Read | DataError]:
        data, stream = self.data, self.data.items.dataset
        samples, epoch, offset = (int(self.start[key]) for key in ("samples", "epoch", "offset"))
        began = int(self.start["began"])
        batch = data.layout.global_batch_size
        own_state = None if has_shuffle_buffer(stream) else getattr(stream, "state_dict", None)
        while True:
            skip = _begin(stream, epoch, offset, self.start["stream"] if offset else None)
            read = offset - skip
            for block in blocks(stream, batch, data.seed, epoch, offset=read, stop=offset):
                numbers = range(read, read + len(block))
                read = numbers.stop
                if numbers.start == 0:
                    before, began = began, 1 + digest(block[0])
                    if skip and before not in (0, began):
                        yield DataError(_OTHER_STREAM)
                        return
                if numbers.stop <= offset:
                    continue  # read over
                if len(block) < batch and data.drop_last:
                    break

                seen = 1 + digest(block[:2]) if samples == self.start["samples"] else 0
                offset, samples = numbers.stop, samples + len(block)
                own = own_state and own_state()
                after = {
                    "samples": samples,
                    "epoch": epoch,
                    "offset": offset,
                    "stream": own,
                    "began": began,
                }
                if (
                    len(block) < batch
                ):  # the end: the state of a stream that was read to it may mean its beginning
                    after |= {"epoch": epoch + 1, "offset": 0, "stream": None, "began": 0}
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
        data, augmented, pairs = (
            self.data,
            self.data.items.augmented,
            [*zip(block, numbers, strict=True)],
        )
        parts = []
        # Now, for a collate or an augmentation may change items, and these come once.
        data.choose_padding_item(augmented(copied(item), epoch, number) for item, number in pairs)
        for part in share(range(len(block)), data.layout):
            items = [
                augmented(item, epoch, number) for item, number in pairs[part.start : part.stop]
            ]
            batch = data.collate(items) if items else None
            weight = data.weigh(len(items), batch) if items else 0.0
            parts.append((batch if weight else data.padding_batch(), weight))
        return parts


def _begin(stream: Any, epoch: int, offset: int, state: Any) -> int:
    """Set a stream to an epoch, or where its state left it; returns the samples to read over up to
    ``offset``.
    """
    if hasattr(stream, "set_epoch"):
        stream.set_epoch(epoch)
    if state is None:
        return offset
    stream.load_state_dict(copy.deepcopy(state))
    return 0


def has_shuffle_buffer(stream: Any) -> bool:
    """Tell whether a Hugging Face stream holds samples back to shuffle them, which its state does
    not keep.
    """
    waiting = [getattr(stream, "_ex_iterable", None)]
    while waiting:
        stage = waiting.pop()
        if type(stage).__name__ == "BufferShuffledExamplesIterable":
            return True
        waiting += [
            one
            for one in (getattr(stage, "ex_iterable", None), *getattr(stage, "ex_iterables", ()))
            if one
        ]
    return False


def _as_it_is(read: Any) -> Any:
    return read


def refuse_what_streams_cannot(config: TrainConfig, origins: Mapping[str, Origin]) -> None:
    """Raise ``ConfigError`` for settings that need a length, or more than one reader."""
    unknown = "a stream has no known length; use"
    rules = {
        "epochs": (config.epochs is not None, f"{unknown} max_steps"),
        "workers": (
            config.workers > 1,
            "a stream is read in order, by one process a rank; use 0 or 1",
        ),
        "eval_every": (isinstance(config.eval_every, str), f"{unknown} a number of steps"),
        "save_every": (isinstance(config.save_every, str), f"{unknown} a number of steps"),
    }
    if broken := [(key, rule) for key, (is_broken, rule) in rules.items() if is_broken]:
        at = {key: origins.get(key, Origin("TrainConfig", key=key)) for key in rules}
        raise ConfigError(
            [Problem(origin=at[key], value=getattr(config, key), rule=rule) for key, rule in broken]
        )
