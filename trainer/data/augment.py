"""Items of a data set, augmented by their own randomness: (seed, epoch, sample) decides, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Generator

from .seeds import generator_of

Augment = Callable[[Any, Generator], Any]


class Items:
    """A map-style data set read by ``(epoch, index)``, as torch's DataLoader fetches lists of keys.

    Args:
        augment: ``augment(item, generator) -> item``; the generator is seeded anew for each (seed,
            epoch, index), at some 20 microseconds an item.
    """

    def __init__(self, dataset: Any, *, seed: int, augment: Augment | None) -> None:
        self.dataset, self.seed, self.augment = dataset, seed, augment

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[Any]:
        indices = [index for _, index in keys]
        fetch = getattr(
            self.dataset, "__getitems__", None
        )  # of datasets.Dataset: one read for the whole list
        items = [self.dataset[index] for index in indices] if fetch is None else fetch(indices)
        if self.augment is None:
            return list(items)
        return [self.augmented(item, *key) for item, key in zip(items, keys, strict=True)]

    def augmented(self, item: Any, epoch: int, index: int) -> Any:
        return (
            item
            if self.augment is None
            else self.augment(item, generator_of(self.seed, epoch, index))
        )
