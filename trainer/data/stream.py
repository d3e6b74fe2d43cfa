"""Windows of a stream: data that can only be read from its beginning, in its own order.

Every rank reads the whole stream and keeps its part of each global batch, so the same samples meet
at the same step on every layout, as with a data set that has an index. The price: each rank reads
(not collates) everything. A stream that divides itself over the ranks would be divided twice; it is
refused (``alike.py``).

A resumed run continues after the last sample that was trained. If the stream has a state of its own
(``state_dict``), it is set to it. Any other stream is read over from the beginning of its epoch,
which is slow and exact. So is one with a shuffle buffer, because its state lacks the buffer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import IterableDataset

from ..errors import ConfigError, DataError, Origin, Problem, origin_of
from ..private.datasets import has_shuffle_buffer
from .batches import Layout, TrainData, Window, copied, parts_of_rank
from .blocks import blocks
from .digest import digest
from .now import Now, set_now

if TYPE_CHECKING:
    from ..config.train_config import TrainConfig

_BEGINS_OTHERWISE = (
    "Data.train does not begin with the sample with which the resumed run began this epoch, so it "
    "is unknown which samples were not trained yet: give what shuffles it a seed, and keep workers "
    "as it was (datasets shuffles differently in a loading process). If only noise was drawn, set "
    "allow_config_change: true to continue"
)


class StreamData(TrainData):
    """Windows of micro-batches of a stream.

    The end of the stream is the end of an epoch. Its last step may be short (``drop_last`` leaves
    it out). The next epoch reads the stream anew, after ``set_epoch(epoch)`` if the stream has this
    method.

    Args:
        dataset: torch's or Hugging Face's IterableDataset, or any iterable.
        layout: how its global batches are cut.
        settings: as of ``TrainData``; ``augment`` gets a generator of (seed, epoch, number in the
            stream), and ``workers`` is 0, or 1 to read ahead in another process.
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

    def windows(self, position: int, steps: int, *, done: int = 0) -> Iterator[Window]:
        assert position == self._state["samples"], "restore() moves a stream, not a position"
        reader = _Reader(self, self._state, done=done, total_steps=self.total_steps(done, steps))
        loader = self.loader(reader, position, batch_size=None, collate_fn=_unchanged)
        for read in islice(loader, steps):
            if isinstance(read, DataError):
                raise read
            self._state = read.state
            yield Window(
                micros=tuple(self.micro_batch(batch, weight) for batch, weight in read.batches),
                samples=read.samples,
                end=read.state["samples"],
                now=read.now,
                digest=read.digest,
            )

    def epochs_at(self, position: int) -> float:
        return float(self._state["epoch"])

    def state(self) -> dict[str, Any]:
        """Return where the last window ended, as JSON.

        ``samples`` is the position, ``offset`` the samples of this epoch. ``stream`` is the
        stream's own state; None where it has none that is complete. ``began`` is a checksum of the
        epoch's first sample: where samples are read over, they must be those of before.
        """
        return copy.deepcopy(self._state)

    def restore(self, state: Mapping[str, Any]) -> int:
        """Continue after the window that ``state`` was taken after, and return the position."""
        # Older checkpoints lack "began"; 0 stands for an unknown first sample.
        self._state = {"began": 0, **copy.deepcopy(dict(state))}
        if has_shuffle_buffer(self.items.dataset):
            self._state["stream"] = None  # older checkpoints have one, which lacks the buffer
        return int(state["samples"])

    def samples_to_read_over(self) -> int:
        """Return how many samples of this epoch must be read over before the next window."""
        if self._state["stream"] is not None:
            return 0
        return int(self._state["offset"])


class _ReadWindow(NamedTuple):
    """A window as the reader hands it over, also from another process.

    Args:
        batches: this rank's micro-batches, each with its weight.
        samples: of all ranks.
        state: of ``StreamData`` after this window.
        digest: of the first samples; 0 where nothing is to be compared.
        now: where the run is in this step.
    """

    batches: list[tuple[Any, float]]
    samples: int
    state: dict[str, Any]
    digest: int
    now: Now


class _Reader(IterableDataset[Any]):
    """Reads global batches and makes this rank's micro-batches; in a loading process, if any.

    Args:
        data: the stream and its settings.
        start: the state after which to continue.
        done: optimizer steps before that.
        total_steps: of the run.
    """

    def __init__(
        self, data: StreamData, start: Mapping[str, Any], *, done: int, total_steps: int
    ) -> None:
        self.data = data
        self.start = start
        self.step = done
        self.total_steps = total_steps

    def __iter__(self) -> Iterator[_ReadWindow | DataError]:
        state = dict(self.start)
        while True:
            is_empty = state["offset"] == 0
            for read in self._epoch(state):
                yield read
                # An error is yielded: torch would wrap one that is raised in a loading process.
                if isinstance(read, DataError):
                    return
                is_empty = False
                state = read.state

            if is_empty:
                yield DataError(self._why_empty(state))
                return
            if state["offset"] > 0:
                state = _next_epoch(state)

    def _epoch(self, start: Mapping[str, Any]) -> Iterator[_ReadWindow | DataError]:
        """Yield the windows from a state to the end of its epoch."""
        stream = self.data.items.dataset
        has_state = hasattr(stream, "state_dict") and not has_shuffle_buffer(stream)
        batch_size = self.data.layout.global_batch_size
        epoch = start["epoch"]
        trained = start["offset"]
        state = dict(start)

        number = _open(stream, start)
        for block in blocks(stream, batch_size, self.data.seed, epoch, offset=number, stop=trained):
            numbers = range(number, number + len(block))
            number = numbers.stop

            if numbers.start == 0:
                state["began"] = 1 + digest(block[0])
                if trained > 0 and start["began"] not in (0, state["began"]):
                    yield DataError(_BEGINS_OTHERWISE)
                    return
            if numbers.stop <= trained:
                continue  # read over

            is_short = len(block) < batch_size
            if is_short and self.data.drop_last:
                return
            is_first = state["samples"] == self.start["samples"]
            first_samples = 1 + digest(block[:2]) if is_first else 0
            moment = self._next_moment(epoch, state["samples"])
            state = {
                "samples": state["samples"] + len(block),
                "epoch": epoch,
                "offset": numbers.stop,
                "stream": stream.state_dict() if has_state else None,
                "began": state["began"],
            }
            if is_short:
                # The state of a stream that was read to its end may mean its beginning.
                state = _next_epoch(state)
            batches = self._batches(block, epoch, numbers)
            yield _ReadWindow(batches, len(block), state, first_samples, moment)

    def _next_moment(self, epoch: int, samples: int) -> Now:
        """Return where the run is in the next step, and note it for what reads that step."""
        self.step += 1
        moment = Now(self.step, float(epoch), samples, self.total_steps, None, self.data.seed)
        set_now(moment)
        return moment

    def _batches(self, block: Sequence[Any], epoch: int, numbers: range) -> list[tuple[Any, float]]:
        """Return this rank's micro-batches of a global batch, each with its weight.

        Args:
            block: the samples of all ranks.
            numbers: of these samples in the stream.
        """
        augmented = self.data.items.augmented

        # Before they are collated: a collate or an augmentation may change items in place, and a
        # stream yields each of them only once.
        numbered = zip(block, numbers, strict=True)
        candidates = (augmented(copied(item), epoch, number) for item, number in numbered)
        self.data.choose_padding_item(candidates)

        batches = []
        for places in parts_of_rank(range(len(block)), self.data.layout):
            items = [augmented(block[place], epoch, numbers[place]) for place in places]
            batch: Any = None
            weight = 0.0
            if items:
                batch = self.data.collate(items)
                weight = self.data.weigh(len(items), batch)
            if weight == 0:
                batch = self.data.padding_batch()
            batches.append((batch, weight))
        return batches

    def _why_empty(self, state: Mapping[str, Any]) -> str:
        """Explain why an epoch had no window."""
        if self.data.drop_last:
            batch_size = self.data.layout.global_batch_size
            return f"drop_last: Data.train did not fill one global batch of {batch_size}"
        if state["epoch"] == 0:
            return "Data.train is an empty stream"
        return (
            f"Data.train ended after {state['samples']} samples and cannot be read again; lower "
            "max_steps, or give an object whose __iter__ starts anew"
        )


def _open(stream: Any, start: Mapping[str, Any]) -> int:
    """Set a stream to the epoch of a state, and where it can, to the place there.

    Returns:
        the number of the sample that it yields next: 0 where samples must be read over.
    """
    if hasattr(stream, "set_epoch"):
        stream.set_epoch(start["epoch"])
    if start["offset"] == 0 or start["stream"] is None:
        return 0
    stream.load_state_dict(copy.deepcopy(start["stream"]))
    return int(start["offset"])


def _next_epoch(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state at the beginning of the next epoch."""
    return {
        "samples": state["samples"],
        "epoch": state["epoch"] + 1,
        "offset": 0,
        "stream": None,
        "began": 0,
    }


def _unchanged(item: Any) -> Any:
    return item


def check_stream_settings(config: TrainConfig, origins: Mapping[str, Origin]) -> None:
    """Raise ``ConfigError`` for settings that need a known length, or more than one reader."""
    no_length = "a stream has no known length; use"
    broken = {}
    if config.epochs is not None:
        broken["epochs"] = f"{no_length} max_steps"
    if config.workers > 1:
        broken["workers"] = "a stream is read in order, by one process a rank; use 0 or 1"
    for key in ("eval_every", "save_every", "stop_at"):
        if isinstance(getattr(config, key), str):
            broken[key] = f"{no_length} a number of steps"

    problems = []
    for key, rule in broken.items():
        origin = origin_of(origins, key)
        problems.append(Problem(origin=origin, value=getattr(config, key), rule=rule))
    if problems:
        raise ConfigError(problems)
