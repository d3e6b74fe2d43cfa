"""Some samples of each data set, compared over the ranks and between a run and its resumption.

Sizes alone are not enough: ``rows[rank::world_size]`` is as long on every rank, and class numbers
that were taken from a set are another permutation in each process. So checksums of three samples
and of the batch of each are compared before the first step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

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
    """A data set of which three samples are read, and how its samples become batches.

    Args:
        name: for messages: ``Data.train``.
        items: the data set, with the augmentation of the training. Its data set is None if the task
            has none.
        collate: makes a batch of a list of items.
        version: the version of its content, as the task gives it. "" for none.
        workers: whether loading processes read the samples. Then a loading process reads these as
            well: a file that the data set opens at its first read (HDF5, LMDB) must not be open
            already when loading processes are forked.
    """

    name: str
    items: Items
    collate: Callable[[Sequence[Any]], Any]
    version: str = ""
    workers: bool = False

    def read(self, draw: int) -> dict[str, str]:
        """Return the size, the version, and checksums of three samples.

        Of a stream nothing is read, because these samples would be lost for the training.

        Args:
            draw: the seed of the global generators while samples are read.
        """
        dataset = self.items.dataset
        if dataset is None or is_stream(dataset):
            return {f"the kind of {self.name}": "none" if dataset is None else "a stream"}

        size = sized(dataset, self.name.removeprefix("Data."))
        facts = {f"the number of samples of {self.name}": str(size)}
        facts[f"the version of {self.name}"] = self.version
        reader: Any = _Reader(self, sorted({0, size // 2, size - 1}), draw)
        if self.workers:
            reader = DataLoader(
                reader,
                batch_size=None,
                num_workers=1,
                collate_fn=_unchanged,
                worker_init_fn=ignore_signals,
                generator=torch.Generator(),  # or it would draw from the process's generator
            )
        return facts | dict(reader)


class _Reader(IterableDataset[tuple[str, str]]):
    """Yields the checksums of the chosen samples, and of the batch that is made of each."""

    def __init__(self, chosen: SampledSet, indices: Sequence[int], draw: int) -> None:
        self.chosen = chosen
        self.indices = indices
        self.draw = draw

    def __iter__(self) -> Iterator[tuple[str, str]]:
        items = self.chosen.items
        plain = Items(items.dataset, seed=items.seed, augment=None)
        for index in self.indices:
            name = f"sample {index} of {self.chosen.name}"
            moment = at(first_moment(items.seed, items.total_steps))
            with temporarily_seeded(self.draw, index), moment:
                [sample] = plain.__getitems__([(0, index, None)])
                yield CONTENT + name, f"{digest(sample):08x}"
                # A copy: an augmentation may change in place what the data set keeps.
                batch = self.chosen.collate([items.augmented(copied(sample), 0, index)])
                yield BATCH + name, f"{digest(batch):08x}"


def _unchanged(item: Any) -> Any:
    return item


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

        Some libraries of augmentations draw from generators of their own, which differ between
        ranks. That is no error. If a sample is random, all samples of the set may be. Collective:
        call on every rank.
        """
        again = self._read(draw=1)
        changed = {_kind(name) for name, text in self.facts.items() if again.get(name) != text}
        kinds = set[str]().union(*self.gather(changed))
        return {name for name in self.facts if _kind(name) in kinds}

    def state(self) -> dict[str, str]:
        """Return facts of the training set and its samples, as JSON, for checkpoints."""
        if not self.sets:
            return {}
        name = self.sets[0].name
        state = {}
        for fact, text in self.facts.items():
            if fact.endswith(name) and not fact.startswith(BATCH):
                state[fact] = text
        return state

    def changes(self, before: Mapping[str, Any]) -> list[str]:
        """Describe how the training set differs from the set whose ``state`` is given.

        The size does not count: a change of size is reported elsewhere, and other samples are read
        then. Collective: call on every rank.
        """
        now = self.state()
        changed = [name for name, text in now.items() if before.get(name, text) != text]
        if any("the number of samples" in name for name in changed):
            changed = []
        if not any(self.gather(bool(changed))):
            return []

        random = self.drawn_anew()
        changed = [name for name in changed if name not in random]
        return [f"the data is another one: {listed(changed, 2)} changed"] if changed else []


def _kind(fact: str) -> str:
    """Return the name of a fact without the number of its sample."""
    return " ".join(word for word in fact.split() if not word.isdigit())
