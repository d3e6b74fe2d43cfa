"""Compare a few samples of each data set: over the ranks, and between a run and its resumption.

Sizes alone are not enough: ``rows[rank::world_size]`` is as long on every rank, and class numbers
that were taken from a set are another permutation in each process. So some samples are read before
the first step, and what they contain is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from ..errors import DataError
from ..text import listed
from .alike import SAME_DATA
from .augment import Items
from .batches import copied, is_stream, sized
from .digest import digest, text_checksum
from .now import at, first_moment
from .rng import temporarily_seeded
from .worker_signals import ignore_signals

SAMPLES = 16  # at 6 classes, fewer than 1 in 100 permutations of them look the same in 16 samples
COLLATED_TOGETHER = 4
SECONDS = 1.0  # after this time no more are read: samples may be films
LONGEST_TUPLE = 8  # a longer one is taken for a sequence of values, not for fields

SIZE = "the number of samples"

# What a sample or a batch contains: a text for each of its fields.
Fields = dict[str, str]
# First key: "sets", "samples of Data.train", "batches of Data.train". Second key: which of these.
Content = dict[str, dict[str, Fields]]


class Difference(NamedTuple):
    """A field whose value differs between a rank and rank 0."""

    rank: int
    field: str
    value: str
    of_rank_0: str


@dataclass(frozen=True, kw_only=True)
class SampledSet:
    """A data set of which a few samples are read, and how its samples become batches.

    Args:
        name: for messages: ``Data.train``.
        items: the data set, with the augmentation of the training; without a data set (None) where
            the task has none.
        collate: makes a batch of a list of items.
        batch_size: the largest number of samples in a batch.
        version: the version of its content, as the task gives it; "" for none.
        workers: whether loading processes read the samples. Then one of them reads these as well: a
            file that the data set opens at its first read (HDF5, LMDB) must not be open already
            when loading processes are forked.
    """

    name: str
    items: Items
    collate: Callable[[Sequence[Any]], Any]
    batch_size: int
    version: str = ""
    workers: bool = False

    def read(self, draw: int) -> Content:
        """Read the size, the version and a few samples.

        Of a stream nothing is read, because these samples would be lost for the training.

        Args:
            draw: the seed of what the samples draw from the global generators, whose states are
                restored afterwards.
        """
        dataset = self.items.dataset
        if dataset is None:
            return {"sets": {self.name: {SIZE: "0"}}}
        if is_stream(dataset):
            return {"sets": {self.name: {SIZE: "that of a stream"}}}

        size = sized(dataset, self.name.removeprefix("Data."))
        about = {SIZE: str(size)}
        if self.version:
            about["the version"] = self.version

        content: Content = {
            "sets": {self.name: about},
            f"samples of {self.name}": {},
            f"batches of {self.name}": {},
        }
        reader = _Reader(self, indices_of(size), draw)
        for kind, key, fields in self._where_training_reads(reader):
            content[f"{kind} of {self.name}"][key] = fields
        return content

    def _where_training_reads(self, reader: _Reader) -> Iterator[tuple[str, str, Fields]]:
        """Run the reader in this process, or in a loading process if the training has some."""
        if not self.workers:
            return iter(reader)
        loader = DataLoader(
            reader,
            batch_size=None,
            num_workers=1,
            collate_fn=_unchanged,
            worker_init_fn=ignore_signals,
            generator=torch.Generator(),  # or it would draw from the process's generator
        )
        return iter(loader)


class _Reader(IterableDataset[tuple[str, str, Fields]]):
    """Reads the chosen samples, and yields the fields of each and of the batches made of them."""

    def __init__(self, chosen: SampledSet, indices: Sequence[int], draw: int) -> None:
        self.chosen = chosen
        self.indices = indices
        self.draw = draw

    def __iter__(self) -> Iterator[tuple[str, str, Fields]]:
        together = min(COLLATED_TOGETHER, self.chosen.batch_size)
        began = time.monotonic()

        for start in range(0, len(self.indices), together):
            indices = self.indices[start : start + together]
            with temporarily_seeded(self.draw, start):
                fields_of_samples, fields_of_batch = self._read(indices)

            for index, fields in zip(indices, fields_of_samples, strict=True):
                yield "samples", f"sample {index} of {self.chosen.name}", fields
            numbers = ", ".join(map(str, indices))
            batch_name = f"the batch of samples {numbers} of {self.chosen.name}"
            yield "batches", batch_name, fields_of_batch

            enough = start + together >= COLLATED_TOGETHER
            if enough and time.monotonic() - began > SECONDS:
                return

    def _read(self, indices: Sequence[int]) -> tuple[list[Fields], Fields]:
        """Return the fields of these samples, and those of the batch of the augmented samples."""
        items = self.chosen.items
        plain = Items(items.dataset, seed=items.seed, augment=None)
        with at(first_moment(items.seed, items.total_steps)):
            samples = plain.__getitems__([(0, index, None) for index in indices])
            fields_of_samples = [fields_of(sample) for sample in samples]

            augmented = []
            for sample, index in zip(samples, indices, strict=True):
                # A copy: an augmentation may change in place what the data set keeps.
                augmented.append(items.augmented(copied(sample), 0, index))
            batch = self.chosen.collate(augmented)
        return fields_of_samples, fields_of(batch)


def _unchanged(item: Any) -> Any:
    return item


def indices_of(size: int) -> list[int]:
    """Choose samples: the first, the last, and random ones between; the same for each size."""
    generator = np.random.default_rng(size)
    between = generator.choice(size, min(size, SAMPLES), replace=False)
    without_duplicates = dict.fromkeys([0, size - 1, *between.tolist()])
    return list(without_duplicates)[:SAMPLES]


def fields_of(item: Any) -> Fields:
    """Return the fields of a sample or a batch: numbers and short text, checksums of all else."""
    # Any class with these two methods, whether or not it is registered as a Mapping.
    is_mapping = callable(getattr(item, "keys", None)) and hasattr(item, "__getitem__")
    if is_mapping:
        return {repr(key): _shown(item[key]) for key in item.keys()}  # noqa: SIM118
    if isinstance(item, tuple | list) and len(item) <= LONGEST_TUPLE:
        return {f"part {number}": _shown(part) for number, part in enumerate(item)}
    return {"the value": _shown(item)}


def _shown(value: Any) -> str:
    """Return the text of a number or a short text; of another value its type and a checksum."""
    shape = getattr(value, "shape", ())
    plain = value
    if hasattr(value, "shape") and shape == () and hasattr(value, "item"):
        plain = value.item()
    if isinstance(plain, bool | int | float | str) and len(repr(plain)) <= 40:
        return repr(plain)

    sizes = "x".join(map(str, shape))
    kind = f"{type(value).__name__} {sizes}".strip()
    return f"{kind} with checksum {digest(value):08x}"


class Sampled:
    """The content of a few samples of the data sets, which must be the same on every rank.

    Args:
        sets: the data sets, the training set first; none where nothing is to be compared.
        gather: collects a value from each rank, in rank order. Collective.
    """

    def __init__(self, sets: Sequence[SampledSet], gather: Callable[[Any], list[Any]]) -> None:
        self.sets = sets
        self.gather = gather
        self.content = self._read(draw=0)
        self._random_fields: frozenset[tuple[str, str]] | None = None

    def _read(self, draw: int) -> Content:
        content: Content = {"sets": {}}
        for sampled_set in self.sets:
            read = sampled_set.read(draw)
            content["sets"] |= read.pop("sets")
            content |= read
        return content

    def check_same_on_all_ranks(self) -> None:
        """Raise ``DataError`` if a rank has other data than rank 0.

        Collective: call on every rank.
        """
        checksum = text_checksum(repr(self.content))
        checksums = self.gather(checksum)
        if len(set(checksums)) == 1:
            return

        contents = self.gather(self.content)
        if _first_difference(contents, frozenset()) is None:
            return  # a slower rank has read fewer samples

        random_fields = self._fields_drawn_anew()
        difference = _first_difference(contents, random_fields)
        if difference is not None:
            raise DataError(
                f"rank {difference.rank}: {difference.field} is {difference.value}, "
                f"rank 0: {difference.of_rank_0}: {SAME_DATA}"
            )

    def _fields_drawn_anew(self) -> frozenset[tuple[str, str]]:
        """Return the fields that are random: they change when the samples are read once more.

        Some libraries of augmentations draw from generators of their own, which differ between
        ranks; that is no error. A field is random if it changes on any rank. Collective: call on
        every rank.
        """
        if self._random_fields is None:
            again = self._read(draw=1)
            changed: set[tuple[str, str]] = set()
            for kind, read in self.content.items():
                for key in read.keys() & again[kind].keys():
                    fields = _differing(read[key], again[kind][key])
                    changed.update((kind, field) for field in fields)

            changed_of_ranks = self.gather(changed)
            self._random_fields = frozenset().union(*changed_of_ranks)
        return self._random_fields

    def state(self) -> dict[str, dict[str, int]]:
        """Return checksums of the training set and its samples, as JSON, for checkpoints."""
        if not self.sets:
            return {}
        name = self.sets[0].name
        read = {name: self.content["sets"][name]}
        read |= self.content.get(f"samples of {name}", {})

        checksums = {}
        for key, fields in read.items():
            checksums[key] = {field: text_checksum(text) for field, text in fields.items()}
        return checksums

    def changes(self, before: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Describe how the training set differs from the one whose ``state`` is given.

        Returns an empty list where nothing differs, or where the sizes do: a change of size is
        reported elsewhere. Collective: call on every rank.
        """
        now = self.state()
        if not now:
            return []
        name = self.sets[0].name
        if before.get(name, {}).get(SIZE) != now[name][SIZE]:
            return []

        common = [key for key in now if key in before]
        differs_here = any(_differing(before[key], now[key]) for key in common)
        differs_on_ranks = self.gather(differs_here)
        if not any(differs_on_ranks):
            return []

        random_fields = self._fields_drawn_anew()
        changed = []
        for key in common:
            kind = "sets" if key == name else f"samples of {name}"
            differing = _differing(before[key], now[key])
            fields = [field for field in differing if (kind, field) not in random_fields]
            if fields:
                changed.append(f"{listed(fields)} of {key}")
        if not changed:
            return []
        return [f"the data is another one: {listed(changed, 2)} changed"]


def _first_difference(
    contents: Sequence[Content], ignored: frozenset[tuple[str, str]]
) -> Difference | None:
    """Return the first difference between a rank and rank 0 in what all ranks have read.

    Args:
        contents: one for each rank, in rank order.
        ignored: fields to pass over, as ``(first key of the content, field)``.
    """
    for kind, of_rank_0 in contents[0].items():
        for key in of_rank_0:
            if not all(key in content.get(kind, {}) for content in contents):
                continue
            fields_of_ranks = [content[kind][key] for content in contents]
            ignored_fields = {field for ignored_kind, field in ignored if ignored_kind == kind}
            difference = _first_difference_of_fields(key, fields_of_ranks, ignored_fields)
            if difference is not None:
                return difference
    return None


def _first_difference_of_fields(
    key: str, fields_of_ranks: Sequence[Fields], ignored: set[str]
) -> Difference | None:
    of_rank_0 = fields_of_ranks[0]
    for rank, fields in enumerate(fields_of_ranks):
        for field in _differing(of_rank_0, fields):
            if field not in ignored:
                return Difference(
                    rank=rank,
                    field=f"{field} of {key}",
                    value=fields.get(field, "missing"),
                    of_rank_0=of_rank_0.get(field, "missing"),
                )
    return None


def _differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the fields whose values differ, or which one of the two does not have."""
    fields = dict.fromkeys([*first, *second])
    return [field for field in fields if first.get(field) != second.get(field)]
