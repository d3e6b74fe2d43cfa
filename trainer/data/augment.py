"""Items of a data set, augmented by their own randomness: (seed, epoch, sample) decides, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Augment = Callable[[Any, torch.Generator], Any]


def seed_of(*entropy: int) -> int:
    """A seed below 2**32, which numpy takes, for each tuple of non-negative numbers."""
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def generator_of(*entropy: int) -> torch.Generator:
    """A CPU generator of its own for each tuple of non-negative numbers."""
    [word] = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(word))


class Items:
    """A map-style data set read by ``(epoch, index)``, as torch's DataLoader fetches lists of keys.

    Args:
        augment: ``augment(item, generator) -> item``; the generator is seeded anew for each (seed, epoch, index),
            at some 20 microseconds an item.
    """

    def __init__(self, dataset: Any, *, seed: int, augment: Augment | None) -> None:
        self.dataset, self.seed, self.augment = dataset, seed, augment

    def __getitems__(self, keys: Sequence[tuple[int, int]]) -> list[Any]:
        indices = [index for _, index in keys]
        fetch = getattr(self.dataset, "__getitems__", None)  # of datasets.Dataset: one read for the whole list
        items = [self.dataset[index] for index in indices] if fetch is None else fetch(indices)
        return [self.augmented(item, *key) for item, key in zip(items, keys, strict=True)]

    def augmented(self, item: Any, epoch: int, index: int) -> Any:
        return item if self.augment is None else self.augment(item, generator_of(self.seed, epoch, index))
