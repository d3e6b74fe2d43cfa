"""Some samples of each data set, compared over the ranks and between a run and its resumption.

Sizes alone are not enough: ``rows[rank::world_size]`` is as long on every rank, and class numbers
that were taken from a set are another permutation in each process. So checksums of eight samples
and of the batch of each are compared before the first step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..text import listed
from .augment import Items
from .batches import copied, is_stream, sized
from .digest import digest, text_checksum
from .now import at, first_moment
from .rng import temporarily_seeded
from .worker_signals import ignore_signals

SAMPLES = 8  # from the first to the last
SIZE = "the number of samples"
BATCH = "the batch"

# The fields of a data set (``Data.train``) and of each sample (``sample 3 of Data.train``).
Content = dict[str, dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class SampledSet:
    """A data set of which eight samples are read, and how its samples become batches.

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

    def read(self, draw: int) -> Content:
        """Read the size, the version and eight samples.

        Of a stream nothing is read, because these samples would be lost for the training.

        Args:
            draw: the seed of the global generators while samples are read.
        """
        dataset = self.items.dataset
        if dataset is None:
            return {self.name: {SIZE: "0"}}
        if is_stream(dataset):
            return {self.name: {SIZE: "that of a stream"}}

        size = sized(dataset, self.name.removeprefix("Data."))
        content = {self.name: {SIZE: str(size)}}
        if self.version:
            content[self.name]["the version"] = self.version
        spread = [number * (size - 1) // (SAMPLES - 1) for number in range(SAMPLES)]
        reader: Any = _Reader(self, list(dict.fromkeys(spread)), draw)
        if self.workers:
            reader = DataLoader(
                reader,
                batch_size=None,
                num_workers=1,
                collate_fn=_unchanged,
                worker_init_fn=ignore_signals,
                generator=torch.Generator(),  # or it would draw from the process's generator
            )
        return content | dict(reader)


class _Reader(IterableDataset[tuple[str, dict[str, str]]]):
    """Yields the checksums of the chosen samples, and of the batch that is made of each."""

    def __init__(self, chosen: SampledSet, indices: Sequence[int], draw: int) -> None:
        self.chosen = chosen
        self.indices = indices
        self.draw = draw

    def __iter__(self) -> Iterator[tuple[str, dict[str, str]]]:
        items = self.chosen.items
        plain = Items(items.dataset, seed=items.seed, augment=None)
        for index in self.indices:
            moment = at(first_moment(items.seed, items.total_steps))
            with temporarily_seeded(self.draw, index), moment:
                [sample] = plain.__getitems__([(0, index, None)])
                content = f"{digest(sample):08x}"
                # A copy: an augmentation may change in place what the data set keeps.
                batch = self.chosen.collate([items.augmented(copied(sample), 0, index)])
            name = f"sample {index} of {self.chosen.name}"
            yield name, {"the content": content, BATCH: f"{digest(batch):08x}"}


def _unchanged(item: Any) -> Any:
    return item


class Sampled:
    """The content of eight samples of each data set, which must be the same on every rank.

    Args:
        sets: the data sets, the training set first. None if nothing is compared.
        gather: collects a value from each rank, in rank order. Collective.
    """

    def __init__(self, sets: Sequence[SampledSet], gather: Callable[[Any], list[Any]]) -> None:
        self.sets = sets
        self.gather = gather
        self.content = self._read(draw=0)

    def _read(self, draw: int) -> Content:
        content: Content = {}
        for sampled_set in self.sets:
            content |= sampled_set.read(draw)
        return content

    @property
    def facts(self) -> dict[str, str]:
        """Return the content by names such as ``the batch of sample 3 of Data.train``."""
        return _flat(self.content)

    def drawn_anew(self) -> set[str]:
        """Return the names of facts that are random: they change if samples are read once more.

        Some libraries of augmentations draw from generators of their own, which differ between
        ranks. That is no error. If a sample is random, all samples of the set may be. Collective:
        call on every rank.
        """
        again = _flat(self._read(draw=1))
        changed = {_kind(name) for name, text in self.facts.items() if again.get(name) != text}
        kinds = set[str]().union(*self.gather(changed))
        return {name for name in self.facts if _kind(name) in kinds}

    def state(self) -> dict[str, dict[str, int]]:
        """Return checksums of the training set and its samples, as JSON, for checkpoints."""
        if not self.sets:
            return {}
        checksums = {}
        for key, fields in self.content.items():
            if key.endswith(self.sets[0].name):
                checksums[key] = {
                    field: text_checksum(text) for field, text in fields.items() if field != BATCH
                }
        return checksums

    def changes(self, before: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Describe how the training set differs from the set whose ``state`` is given.

        Returns an empty list if nothing differs, or if the sizes do: a change of size is reported
        elsewhere. Collective: call on every rank.
        """
        now = self.state()
        name = self.sets[0].name if self.sets else ""
        changed = []
        if now and before.get(name, {}).get(SIZE) == now[name][SIZE]:
            for key, fields in now.items():
                for field, checksum in fields.items():
                    if before.get(key, {}).get(field, checksum) != checksum:
                        changed.append(f"{field} of {key}")
        if not any(self.gather(bool(changed))):
            return []

        random = self.drawn_anew()
        changed = [fact for fact in changed if fact not in random]
        return [f"the data is another one: {listed(changed, 2)} changed"] if changed else []


def _kind(fact: str) -> str:
    """Return the name of a fact without the number of its sample."""
    return re.sub("sample [0-9]+", "sample", fact)


def _flat(content: Content) -> dict[str, str]:
    facts = {}
    for key, fields in content.items():
        for field, text in fields.items():
            facts[f"{field} of {key}"] = text
    return facts
