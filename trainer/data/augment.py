"""Items of a data set, augmented by randomness that belongs to the sample.

The random numbers of an augmentation follow from (seed, epoch, sample) alone. They are the same on
every layout, with any number of loading processes, and in a resumed run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from torch import Generator

from .now import Now, at, current, set_now
from .seeds import generator_of

Augment = Callable[[Any, Generator], Any]
# Epoch and index of an item, and the moment of the run that reads the item, if there is a moment.
Key = tuple[int, int, Now | None]


@dataclass(eq=False)
class Items:
    """A map-style data set that is read by keys ``(epoch, index, now)``.

    Args:
        augment: ``augment(item, generator) -> item``. The generator is seeded anew for each (seed,
            epoch, index), which costs some 20 microseconds an item.
        total_steps: of the run, once they are known. For items that are read before training.
    """

    dataset: Any
    _: KW_ONLY
    seed: int
    augment: Augment | None
    total_steps: int = 1

    def moment(
        self, step: int, epoch: float, samples: int, evaluation_set: str | None = None
    ) -> Now:
        """Return the moment of a step of the run."""
        return Now(step, epoch, samples, self.total_steps, evaluation_set, self.seed)

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        moment = keys[0][2] if keys else None  # a loading process without a part of the batch
        if moment is not None:
            set_now(moment)  # for collate as well, which follows

        items = self.read([index for _, index, _ in keys])
        return [
            self.augmented(item, epoch, index)
            for item, (epoch, index, _) in zip(items, keys, strict=True)
        ]

    def read(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return items as they are in the data set."""
        # datasets.Dataset and others read a whole list at once.
        read_many: Callable[[Sequence[int]], Sequence[Any]] | None = getattr(
            self.dataset, "__getitems__", None
        )
        if read_many is not None:
            return read_many(indices)
        return [self.dataset[index] for index in indices]

    def augmented(self, item: Any, epoch: int, index: int) -> Any:
        """Return the item, augmented for this epoch.

        The augmentation gets a copy: it may change in place an item that the data set keeps.
        """
        if self.augment is None:
            return item
        generator = generator_of(self.seed, epoch, index)
        moment = current()
        with at(moment and Now(*moment[:-1], of_sample=generator)):
            return self.augment(copied(item), generator)


def copied(item: Any) -> Any:
    """Return a deep copy of an item. The copy is shallow if the item holds a lock or a graph."""
    try:
        return copy.deepcopy(item)
    except Exception:
        return copy.copy(item)
