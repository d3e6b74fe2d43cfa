"""How a global batch is cut into the micro-batches of each rank.

The *position* of a training is an integer, the number of samples that all ranks together have
trained on since the start. A position has the same meaning on every layout, because the order of an
epoch does not depend on the layout (``order.py``) and each optimizer step takes the next
``global_batch_size`` samples of that order. Only then are these samples divided over the ranks:

    position 4, global batch 4: the step takes the samples at the places 4, 5, 6, 7 of the order

    1 process,   micro-batch 4                   [4 5 6 7]
    2 processes, micro-batch 2                   rank 0: [4 5]      rank 1: [6 7]
    2 processes, micro-batch 1, accumulation 2   rank 0: [4] [6]    rank 1: [5] [7]

After this step the position is 8 on all three. So a run on another layout that resumes from a
checkpoint at position 8 continues with the places 8, 9, 10, ...: no sample comes twice, and none is
left out. The same in code:

    >>> for rank in range(2):
    ...     layout = Layout(rank=rank, world_size=2, micro_batch_size=1, accumulation_steps=2)
    ...     print([list(part) for part in parts_of_rank(range(4, 8), layout)])
    [[4], [6]]
    [[5], [7]]
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, default_collate

from ..errors import DataError, TrainerError
from ..text import listed
from .augment import Augment, Items, copied
from .now import Now
from .seeds import generator_of
from .worker_signals import ignore_signals


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The way in which a global batch is cut: over ranks, and over the micro-batches of each.

    Args:
        rank: of this process, among those that have batches of their own.
        world_size: number of ranks that have batches of their own.
        micro_batch_size: samples of a rank in a forward and backward pass.
        accumulation_steps: micro-batches of a rank in an optimizer step.
        whole_micro_batches: a short step is cut into micro-batches of full size, and the last of
            them, as on every other layout, instead of evenly over the ranks.
    """

    rank: int
    world_size: int
    micro_batch_size: int
    accumulation_steps: int
    whole_micro_batches: bool = False

    @property
    def global_batch_size(self) -> int:
        """Return the samples of all ranks in an optimizer step."""
        return self.micro_batch_size * self.accumulation_steps * self.world_size


class MicroBatch(NamedTuple):
    """A micro-batch of this rank.

    Args:
        batch: of ``collate``.
        weights: the number of items (the examples, or the count of ``Task.weight``), as ``by_part``
            gives them.
    """

    batch: Any
    weights: Mapping[str, float]

    @property
    def weight(self) -> float:
        """Return the number of items of all parts.

        0 marks a padding batch, which adds nothing to the loss or to sums over ranks. With a
        padding batch the rank takes part in the collectives.
        """
        return sum(self.weights.values())


class Window(NamedTuple):
    """All micro-batches of an optimizer step on this rank.

    Args:
        micros: the micro-batches. Every rank has the same number of them.
        samples: of all ranks in this step.
        end: the position after this step.
        now: the moment of this step: its number, the epoch, a generator.
        digest: a checksum of the first samples of a stream, which must be the same on every rank. 0
            if nothing is to be compared.
    """

    micros: Sequence[MicroBatch]
    samples: int
    end: int
    now: Now
    digest: int = 0

    @property
    def weight(self) -> float:
        """Return the part of this rank in the weight of the step, a sum over all ranks."""
        return sum(micro.weight for micro in self.micros)


def by_part(weight: Any) -> dict[str, float]:
    """Return a result of ``Task.weight`` by the parts of the loss. A loss without parts is ``""``.

    The names are in order: ranks add up lists of weights.
    """
    given = weight if isinstance(weight, Mapping) else {"": weight}
    return {name: float(given[name]) for name in sorted(given)}


def parts_of_rank(taken: range, layout: Layout) -> Iterator[range]:
    """Yield this rank's micro-batches of a step, of which all ranks together take ``taken``.

    A short step, at the end of an epoch, has fewer micro-batches, the same number on every rank.
    The samples of the last micro-batch are distributed evenly. A rank's part may be empty.
    """
    per_micro_batch = layout.micro_batch_size * layout.world_size
    for start in range(0, len(taken), per_micro_batch):
        of_all_ranks = taken[start : start + per_micro_batch]
        width = per_micro_batch if layout.whole_micro_batches else len(of_all_ranks)
        yield share_of_rank(of_all_ranks, width, layout)


def share_of_rank(places: Any, width: int, layout: Layout) -> Any:
    """Return the part of this rank in places that are cut as evenly as ``width`` places."""
    begin = width * layout.rank // layout.world_size
    end = width * (layout.rank + 1) // layout.world_size
    return places[begin:end]


class TrainData(ABC):
    """The training data as windows of micro-batches, from any position.

    Args:
        dataset: the data set.
        layout: of the global batches.
        order: an ``OwnOrder``, of a data set without an order of its own.
        seed: of the order, of augmentations, and of loading processes.
        collate: makes a batch of a list of items. By default torch's ``default_collate``.
        augment: changes an item by the randomness of its (seed, epoch, sample).
        weight_of: as ``Task.weight``. By default the number of examples.
        drop_last: leave out the short last step of each epoch.
        workers: loading processes of this rank.
        pin_memory: whether batches lie in page-locked memory, from which a GPU copies faster.

    Attributes:
        weight_is_planned: whether each batch weighs as many examples as it was collated of.
        size: samples in the data set. None for a stream, whose length is not known.
        steps_per_epoch: optimizer steps in an epoch. None for a stream.
    """

    size: int | None = None
    steps_per_epoch: int | None = None

    def __init__(
        self,
        dataset: Any,
        layout: Layout,
        order: Any,
        *,
        seed: int,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        augment: Augment | None = None,
        weight_of: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        self.items = Items(dataset, seed=seed, augment=augment)
        self.layout = layout
        self.order = getattr(dataset, "own_order", None) or order
        self.order.lay_out(layout, workers)
        self.seed = seed
        self.collate = collate or default_collate
        self.weight_of = weight_of
        self.weight_is_planned = weight_of is None and collate is None
        self.drop_last = drop_last
        self.workers = workers
        self.pin_memory = pin_memory
        self._padding_item: Any = None
        self._parts: Collection[str] = ()  # of the loss

    def loaded(self, dataset: Any, position: int, **settings: Any) -> Iterator[Any]:
        """Yield the samples of torch's loader behind ``position``. Raise errors that are yielded.

        torch would wrap an error that is raised in a loading process.

        Args:
            settings: further arguments of ``DataLoader``.
        """
        for read in DataLoader(
            dataset,
            num_workers=self.workers,
            pin_memory=self.pin_memory,
            generator=generator_of(self.seed, self.layout.rank, position),
            worker_init_fn=ignore_signals,
            collate_fn=_unchanged,
            **settings,
        ):
            if isinstance(read, TrainerError):
                raise read
            yield read

    def micro_batch(self, examples: int, batch: Any, candidates: Iterable[Any] = ()) -> MicroBatch:
        """Weigh a batch. A batch without weight is replaced by a padding batch.

        The loss of a batch without weight can be NaN (a mean over no tokens), and zero times NaN is
        NaN, in the backward pass too. So a padding batch is made of an item that does have weight.
        The item is copied each time, because some collates change their items.

        Args:
            examples: in the batch. Without examples the batch is ignored.
            candidates: items to choose the padding item from, if none was chosen yet.
        """
        weights = self.weigh(batch, examples) if examples else {}
        if not any(weights.values()):
            self.choose_padding_item(candidates)
            count = min(2, self.layout.micro_batch_size)  # BatchNorm needs two values
            batch = self.collate([copied(self._padding_item) for _ in range(count)])
            weights = dict.fromkeys(self.weigh(batch, count), 0.0)
        return MicroBatch(batch, weights)

    def choose_padding_item(self, candidates: Iterable[Any]) -> None:
        """Keep the first item that has weight for padding batches, unless an item is kept already.

        If no item has weight, the last item is kept. A step without any weight is refused later.
        """
        if self._padding_item is not None:
            return
        for item in candidates:
            self._padding_item = copied(item)
            if self.weight_is_planned:
                return
            with contextlib.suppress(Exception):  # some collates cannot leave all items out
                if any(self.weigh(self.collate([copied(item)]), 1).values()):
                    return

    def weigh(self, batch: Any, samples: int) -> dict[str, float]:
        """Return the weights of a batch that was collated of so many samples."""
        if self.weight_of is None:
            return {"": samples if self.weight_is_planned else examples_in(batch, samples)}

        weights = by_part(self.weight_of(batch))
        self._parts = self._parts or weights.keys()
        if self._parts != weights.keys():
            raise DataError(
                f"Task.weight returns {weights}, and returned {[*self._parts]} before: return all "
                "parts of the loss, those without an item as 0"
            )
        return weights

    @abstractmethod
    def windows(self, position: int, steps: int, *, done: int = 0) -> Iterator[Window]:
        """Yield the next ``steps`` windows from ``position``.

        All batches of a window are read before the window is yielded, so its weight is known.

        Args:
            done: optimizer steps before these.
        """

    @abstractmethod
    def parts(self, begin: int, end: int) -> Sequence[Sequence[int]]:
        """Return this rank's samples by micro-batch of the step between two positions."""

    @abstractmethod
    def epochs_at(self, position: int) -> float:
        """Return the passes over the data after ``position`` samples, whole passes of a stream."""

    def notices(self, steps: int) -> list[str]:
        """Return lines for the banner of a run of so many steps."""
        samples = steps * self.layout.global_batch_size
        return self.order.notices(samples)  # type: ignore[no-any-return]

    def logged(self, position: int) -> dict[str, float]:
        """Return values for the log about the samples since the last call."""
        return {}

    def gather(self, gather: Callable[[Any], list[Any]]) -> None:  # noqa: B027
        """Collect the parts of the state that other ranks have. Collective."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the end of the last window, as JSON."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> int:
        """Continue after the window that ``state`` was taken after, on any layout.

        Returns:
            the position there.
        """

    def samples_to_read_over(self) -> int:
        """Return the samples of a stream that must be read over before the next window."""
        return 0


def _unchanged(read: Any) -> Any:
    return read


def examples_in(batch: Any, samples: int) -> int:
    """Count the examples in a batch that was collated of so many samples.

    There are fewer if ``collate`` left samples out, which shows if all tensors of the batch have
    the same smaller first dimension. If their second dimension is that of the samples, the first is
    time, as in torch's ``pad_sequence``.
    """
    shapes = set(_shapes(batch, samples))
    lengths = {shape[0] for shape in shapes}
    begins_with_time = all(shape[1:] == (samples,) for shape in shapes)
    return min(samples, *lengths) if len(lengths) == 1 and not begins_with_time else samples


def _shapes(value: Any, samples: int) -> Iterator[tuple[int, ...]]:
    """Yield two dimensions of each tensor, and ``(samples,)`` for a list of single examples."""
    if getattr(value, "ndim", 0):
        yield tuple(value.shape[:2])
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _shapes(part, samples)
    elif isinstance(value, list | tuple):
        are_alike = len({getattr(part, "ndim", None) for part in value}) == 1
        if len(value) == samples and are_alike:
            yield (samples,)
        for part in value:
            yield from _shapes(part, samples)


def size_of(dataset: Any, name: str) -> int | None:
    """Return the length of data. None for a stream: an iterable without length or indexing.

    torch's IterableDataset is a stream, also with a length.

    Args:
        name: for messages: ``Data.train``.

    Raises:
        DataError: the data is empty, is a loader, whose batches would be taken for items, or holds
            several data sets by name.
    """
    if isinstance(dataset, Mapping) and 0 not in dataset:
        raise DataError(f"{name} holds several data sets ({listed([*dataset])}): give one of them")
    if isinstance(dataset, DataLoader):
        raise DataError(
            f"{name} holds a DataLoader: give its .dataset, and its collate_fn as Data.collate"
        )

    has_index = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not has_index:
        if not hasattr(dataset, "__iter__"):
            raise DataError(f"{name} is a {type(dataset).__name__}, without length and indexing")
        return None
    if len(dataset) == 0:
        raise DataError(f"{name} is empty")
    return len(dataset)
