"""Some samples of each data set, compared over the ranks and between a run and its resumption.

Sizes alone are not enough: ``rows[rank::world_size]`` has the same size on every rank, and class
numbers that were taken from a set are another permutation in each process. So checksums of three
samples and of the batch of each are compared before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..text import listed
from .augment import Items
from .batches import copied, is_stream, sized
from .digest import digest
from .now import at, first_moment
from .rng import temporarily_seeded
from .worker_signals import ignore_signals

CONTENT = "the content of "
BATCH = "the batch of "


@dataclass(frozen=True, kw_only=True)
class SampledSet:
    """A data set of which three samples are read, and the way from samples to batches.

    Args:
        name: for messages: ``Data.train``.
        items: the data set, with the augmentation of the training. ``items.dataset`` is None if the
            task has no such set.
        collate: makes a batch of a list of items.
        version: ``Data.version``. "" for none.
        workers: whether loading processes read the samples. Then a loading process reads these as
            well: a file that the data set opens at the first read (HDF5, LMDB) must not be open
            already when loading processes are forked.
    """

    name: str
    items: Items
    collate: Callable[[Sequence[Any]], Any]
    version: str = ""
    workers: bool = False

    def read(self, draw: int) -> dict[str, str]:
        """Return the size, the version, and checksums of three samples.

        A stream is not read, because these samples would be lost for the training.

        Args:
            draw: the seed of the global generators while samples are read.
        """
        dataset = self.items.dataset
        if dataset is None or is_stream(dataset):
            return {f"the kind of {self.name}": "none" if dataset is None else "a stream"}

        size = sized(dataset, self.name)
        facts = {
            f"the number of samples of {self.name}": str(size),
            f"the version of {self.name}": self.version,
        }
        itself: Any = self
        loader = DataLoader(
            itself,
            batch_size=None,
            sampler=[(draw, index) for index in sorted({0, size // 2, size - 1})],
            num_workers=int(self.workers),
            worker_init_fn=ignore_signals,
            generator=torch.Generator(),  # or it would draw from the process's generator
        )
        for checksums in loader:
            facts |= checksums
        return facts

    def __getitem__(self, key: tuple[int, int]) -> dict[str, str]:
        """Return the checksums of a sample and of its batch, by a seed and the sample's index."""
        draw, index = key
        items = self.items
        name = f"sample {index} of {self.name}"
        with temporarily_seeded(draw, index), at(first_moment(items.seed, items.total_steps)):
            [sample] = items.read([index])
            content = f"{digest(sample):08x}"
            # A copy: an augmentation may change in place an item that the data set keeps.
            batch = self.collate([items.augmented(copied(sample), 0, index)])
            return {CONTENT + name: content, BATCH + name: f"{digest(batch):08x}"}


class Sampled:
    """The content of three samples of each data set, which must be the same on every rank.

    Args:
        sets: the data sets, the training set first. Without sets nothing is compared.
        gather: collects a value from each rank, in rank order. Collective.

    Attributes:
        facts: checksums by names such as ``the batch of sample 3 of Data.train``.
    """

    def __init__(self, sets: Sequence[SampledSet], gather: Callable[[Any], list[Any]]) -> None:
        self.sets = sets
        self.gather = gather
        self.facts = self._read(draw=0)

    def _read(self, draw: int) -> dict[str, str]:
        facts: dict[str, str] = {}
        for sampled_set in self.sets:
            facts |= sampled_set.read(draw)
        return facts

    def drawn_anew(self) -> set[str]:
        """Return the names of facts that are random: they change if samples are read once more.

        Some libraries of augmentations draw from their own generators, which differ between ranks.
        That is no error. If a sample is random, all samples of the set may be. Collective: call on
        every rank.
        """
        again = self._read(draw=1)
        changed = {_kind(name) for name, text in self.facts.items() if again.get(name) != text}
        kinds = set[str]().union(*self.gather(changed))
        return {name for name in self.facts if _kind(name) in kinds}

    def state(self) -> dict[str, str]:
        """Return facts of the training set and of the samples, as JSON, for checkpoints."""
        return {
            fact: text
            for fact, text in self.facts.items()
            if fact.endswith("Data.train") and not fact.startswith(BATCH)
        }

    def changes(self, before: Mapping[str, Any]) -> list[str]:
        """Describe how the training set differs from the set whose ``state`` is given.

        The size does not count: a change of size is reported elsewhere, and other samples are read
        then. Collective: call on every rank.
        """
        changed = [name for name, text in self.state().items() if before.get(name, text) != text]
        if "the number of samples of Data.train" in changed:
            changed = []
        if not any(self.gather(bool(changed))):
            return []

        random = self.drawn_anew()
        changed = [name for name in changed if name not in random]
        return [f"the data is another one: {listed(changed, 2)} changed"] if changed else []


def _kind(fact: str) -> str:
    """Return the name of a fact without the number of its sample."""
    return " ".join(word for word in fact.split() if not word.isdigit())
