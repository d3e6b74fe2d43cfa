"""A few samples of each data set: whether all ranks have the same data, and whether a resumed run
has it still.

Sizes alone do not tell: ``rows[rank::world_size]`` is as long on every rank, and class numbers from
a set are another permutation in each process. So some samples are read before the first step, and
what they hold is compared.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from ..errors import DataError
from ..text import listed
from .alike import SAME_DATA, digest, drawing
from .augment import Items
from .batches import copied, is_stream, sized
from .worker_signals import ignore_signals

SAMPLES = 16  # of 6 classes in another order, fewer than 1 in 100 orders look the same to them
AT_ONCE = 4  # that are read and collated together
SECONDS = 1.0  # after which no more are read: samples may be films

SIZE = "the number of samples"
Fields = dict[str, str]
Content = dict[
    str, dict[str, Fields]
]  # of the sets, of their samples, and of batches; then by sample or batch


class Difference(NamedTuple):
    """A field that a rank has otherwise than rank 0."""

    rank: int
    what: str
    value: str
    of_rank_0: str


@dataclass(frozen=True, kw_only=True)
class SampledSet:
    """A data set and how its samples become batches.

    Args:
        name: for messages.
        items: with the augmentation that training has; without a data set where the task has none.
        collate: makes a batch of items.
        batch_size: the most samples in a batch.
        version: what the task says of its content; "" for nothing.
        workers: whether other processes load the samples. Then one reads these as well: a file that
            the data set opens at its first read (HDF5, LMDB) must not be open already when loading
            processes are forked.
    """

    name: str
    items: Items
    collate: Callable[[Sequence[Any]], Any]
    batch_size: int
    version: str = ""
    workers: bool = False

    def read(self, draw: int) -> Content:
        """Read size, version and a few samples; of a stream nothing, for what is read of it is
        gone.

        Args:
            draw: the seed of what the samples draw from the global generators, which stay as they
                were.
        """
        dataset = self.items.dataset
        if dataset is None:
            return {"sets": {self.name: {SIZE: "0"}}}
        if is_stream(dataset):
            return {"sets": {self.name: {SIZE: "that of a stream"}}}

        size = sized(dataset, self.name.rpartition(".")[2])
        about = {SIZE: str(size)}
        if self.version:
            about["the version"] = self.version
        content: Content = {
            "sets": {self.name: about},
            f"samples of {self.name}": {},
            f"batches of {self.name}": {},
        }
        for kind, key, fields in self._read_in_place(_Reader(self, indices_of(size), draw)):
            content[f"{kind} of {self.name}"][key] = fields
        return content

    def _read_in_place(self, reader: _Reader) -> Iterator[tuple[str, str, Fields]]:
        if not self.workers:
            return iter(reader)
        loader = DataLoader(
            reader,
            batch_size=None,
            num_workers=1,
            collate_fn=_as_it_is,
            worker_init_fn=ignore_signals,
            generator=torch.Generator(),  # or it would draw from the process's
        )
        return iter(loader)


class _Reader(IterableDataset[tuple[str, str, Fields]]):
    """Yields what the chosen samples of a set hold, and what batches of them do."""

    def __init__(self, chosen: SampledSet, indices: Sequence[int], draw: int) -> None:
        self.chosen, self.indices, self.draw = chosen, indices, draw

    def __iter__(self) -> Iterator[tuple[str, str, Fields]]:
        chosen, items = self.chosen, self.chosen.items
        plain = Items(items.dataset, seed=items.seed, augment=None)
        together = min(AT_ONCE, chosen.batch_size)
        began = time.monotonic()

        for start in range(0, len(self.indices), together):
            indices = self.indices[start : start + together]
            with drawing(self.draw, start):
                samples = plain.__getitems__([(0, index) for index in indices])
                found = [fields_of(sample) for sample in samples]
                # Copies: an augmentation may change what the data set keeps.
                augmented = [
                    items.augmented(copied(one), 0, index)
                    for one, index in zip(samples, indices, strict=True)
                ]
                batch = fields_of(chosen.collate(augmented))

            for index, fields in zip(indices, found, strict=True):
                yield "samples", f"sample {index} of {chosen.name}", fields
            yield (
                "batches",
                f"the batch of samples {', '.join(map(str, indices))} of {chosen.name}",
                batch,
            )

            enough = start + together >= AT_ONCE
            if enough and time.monotonic() - began > SECONDS:
                return


def _as_it_is(read: Any) -> Any:
    return read


def indices_of(size: int) -> list[int]:
    """Choose the samples to look at: the first, the last, and some between, always the same of one
    size.
    """
    between = np.random.default_rng(size).choice(size, min(size, SAMPLES), replace=False)
    return list(dict.fromkeys([0, size - 1, *between.tolist()]))[:SAMPLES]


def fields_of(item: Any) -> Fields:
    """Return what an item holds by name: numbers and short text as they are, a checksum of anything
    else.
    """
    if callable(getattr(item, "keys", None)) and hasattr(item, "__getitem__"):
        return {repr(key): _told(item[key]) for key in item.keys()}  # noqa: SIM118  (it need not be a mapping)
    if isinstance(item, tuple | list) and len(item) <= 8:  # a longer one is a sequence of values
        return {f"part {number}": _told(part) for number, part in enumerate(item)}
    return {"the value": _told(item)}


def _told(value: Any) -> str:
    is_single = getattr(value, "shape", None) == () and hasattr(value, "item")
    plain = value.item() if is_single else value
    if isinstance(plain, bool | int | float | str) and len(repr(plain)) <= 40:
        return repr(plain)
    shape = "x".join(map(str, getattr(value, "shape", ())))
    kind = f"{type(value).__name__} {shape}".strip()
    return f"{kind} with checksum {digest(value):08x}"


class Sampled:
    """What a few samples of the data sets hold, which must be the same on every rank.

    Args:
        sets: to be read, the training set first; none where nobody wants to know.
        gather: a value from each rank. Collective.
    """

    def __init__(self, sets: Sequence[SampledSet], gather: Callable[[Any], list[Any]]) -> None:
        self.sets, self.gather = sets, gather
        self.content = self._read(draw=0)
        self._drawn: frozenset[tuple[str, str]] | None = None

    def _read(self, draw: int) -> Content:
        content: Content = {"sets": {}}
        for one in self.sets:
            read = one.read(draw)
            content["sets"] |= read.pop("sets")
            content |= read
        return content

    def refuse_unlike(self) -> None:
        """Raise ``DataError`` where another rank has other data. Every rank calls it."""
        checksums = self.gather(_checksum(repr(self.content)))
        if len(set(checksums)) == 1:
            return
        of_ranks = self.gather(self.content)
        if _first_difference(of_ranks, frozenset()) is None:
            return  # a rank that was slower has read fewer samples
        found = _first_difference(of_ranks, self._fields_drawn_anew())
        if found is not None:
            told = f"rank {found.rank}: {found.what} is {found.value}, rank 0: {found.of_rank_0}"
            raise DataError(f"{told}: {SAME_DATA}")

    def _fields_drawn_anew(self) -> frozenset[tuple[str, str]]:
        """Return the fields that hold something else when they are read again, on any rank. Every
        rank calls it.

        They are drawn: also from generators of their own, as some libraries of augmentations do, on
        each rank others.
        """
        if self._drawn is None:
            again = self._read(draw=1)
            mine = {
                (kind, field)
                for kind, read in self.content.items()
                for key in read.keys() & again[kind].keys()
                for field in _differing(read[key], again[kind][key])
            }
            of_ranks = self.gather(mine)
            self._drawn = frozenset().union(*of_ranks)
        return self._drawn

    def state(self) -> dict[str, dict[str, int]]:
        """Return checksums of what the training set and its samples hold, as JSON."""
        if not self.sets:
            return {}
        name = self.sets[0].name
        read = {name: self.content["sets"][name], **self.content.get(f"samples of {name}", {})}
        return {
            key: {field: _checksum(text) for field, text in fields.items()}
            for key, fields in read.items()
        }

    def changes(self, before: Mapping[str, Mapping[str, int]]) -> list[str]:
        """Say in what the training set differs from the one whose ``state`` this was. Every rank
        calls it.

        Of a set of another size nothing is compared here: sizes are known otherwise.
        """
        now = self.state()
        if not now:
            return []
        name = self.sets[0].name
        if before.get(name, {}).get(SIZE) != now[name][SIZE]:
            return []

        common = [key for key in now if key in before]
        differs = any(_differing(before[key], now[key]) for key in common)
        of_ranks = self.gather(differs)
        if not any(of_ranks):
            return []

        drawn = self._fields_drawn_anew()
        found = []
        for key in common:
            kind = "sets" if key == name else f"samples of {name}"
            fields = [
                field for field in _differing(before[key], now[key]) if (kind, field) not in drawn
            ]
            found += [f"{listed(fields)} of {key}"] if fields else []
        return [f"the data is another one: {listed(found, 2)} changed"] if found else []


def _first_difference(
    of_ranks: Sequence[Content], drawn: frozenset[tuple[str, str]]
) -> Difference | None:
    """Return the first difference in what all ranks have read, but for the fields that are drawn."""
    for kind, read in of_ranks[0].items():
        for key, fields in read.items():
            if not all(key in content.get(kind, {}) for content in of_ranks):
                continue
            for rank, content in enumerate(of_ranks):
                other = content[kind][key]
                for field in _differing(fields, other):
                    if (kind, field) not in drawn:
                        value, of_rank_0 = other.get(field, "missing"), fields.get(field, "missing")
                        return Difference(rank, f"{field} of {key}", value, of_rank_0)
    return None


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    fields = [*one, *(field for field in other if field not in one)]
    return [field for field in fields if one.get(field) != other.get(field)]


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode(errors="backslashreplace"))
