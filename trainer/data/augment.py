"""Items of a data set, augmented by randomness that belongs to the sample.

What an augmentation draws follows from (seed, epoch, sample) alone: it is the same on every layout,
with any number of loading processes, and in a resumed run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Generator

from .now import Now, at, current, set_now
from .seeds import generator_of

Augment = Callable[[Any, Generator], Any]
# Epoch and index of an item, and the moment of the run for which it is read, where there is one.
Key = tuple[int, int, Now | None]


class Items:
    """A map-style data set that is read by keys ``(epoch, index, now)``.

    torch's DataLoader calls ``__getitems__`` with the keys of a batch.

    Args:
        dataset: the data set.
        seed: of the augmentation.
        augment: ``augment(item, generator) -> item``. The generator is seeded anew for each (seed,
            epoch, index), which costs some 20 microseconds an item.

    Attributes:
        total_steps: of the run, once they are known. For items that are read before training.
    """

    def __init__(self, dataset: Any, *, seed: int, augment: Augment | None) -> None:
        self.dataset = dataset
        self.seed = seed
        self.augment = augment
        self.total_steps = 1

    def __getitems__(self, keys: Sequence[Key]) -> list[Any]:
        moment = keys[0][2]
        if moment is not None:
            set_now(moment)  # it stays for collate, which follows

        indices = [index for _, index, _ in keys]
        # datasets.Dataset and others read a whole list at once.
        read_many = getattr(self.dataset, "__getitems__", None)
        if read_many is None:
            items = [self.dataset[index] for index in indices]
        else:
            items = read_many(indices)

        return [
            self.augmented(item, epoch, index)
            for item, (epoch, index, _) in zip(items, keys, strict=True)
        ]

    def augmented(self, item: Any, epoch: int, index: int) -> Any:
        """Return the item as the augmentation makes it in this epoch."""
        if self.augment is None:
            return item
        generator = generator_of(self.seed, epoch, index)
        moment = current()
        if moment is None:
            return self.augment(item, generator)
        with at(Now(*moment[:-1], of_sample=generator)):
            return self.augment(item, generator)
