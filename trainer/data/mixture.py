"""Several data sets mixed by weight: an order of their rows, exact on any layout.

The samples of a run are divided between two halves of the sources by the rounded share of each
half, and the samples of a half again, down to single sources. So the source and the row at a
position follow from the position alone: nothing is drawn, nothing drifts, and a checkpoint needs
the position only. Each source gives its rows in an order of its own, pass after pass.

A source ends behind its last pass, and its samples go to the others in proportion. This moment, and
a change of weights at a resume, begin a new phase.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import ConcatDataset

from ..errors import CheckpointError, DataError
from .batches import size_of
from .feistel import feistel_order
from .order import ENDLESS, Indices, Order, OwnOrder
from .seeds import seed_of

UNITS = 10**6  # of all weights together


class Source(NamedTuple):
    """A data set of a mixture.

    Args:
        data: a map-style data set.
        weight: the share of rows, relative to the other weights.
        passes: how often the data is read. None: without end.
    """

    data: Any
    weight: float
    passes: int | None = None


def mixed(sources: Mapping[str, Any]) -> Mixed:
    """Mix map-style data sets by weight: ``mixed({"code": (code, 0.7), "web": (web, 0.3, 2)})``.

    Any number of samples from the start has the share of rows of each of up to four sources within
    a sample. A source that has a number of passes ends behind the last pass, and its share goes to
    the others. Otherwise a source is repeated without end, and ``max_steps`` ends the run.

    Raises:
        DataError: a source is empty, a stream or read in blocks, or a weight is too small.
    """
    return Mixed({name: Source(*source) for name, source in sources.items()})


class Mixed(OwnOrder):
    """The rows of all sources, one source behind the other, and their order.

    An index beyond the last row is the same row in a later pass, so that an augmentation draws
    other numbers.

    Attributes:
        weights: position and weights, from the start of the run and from each change on.
        version: of all sources, for ``Data``.
    """

    version = ""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        for name, source in sources.items():
            size = size_of(source.data, f"mixed: {name}")
            if size is None or hasattr(source.data, "own_order"):
                raise DataError(
                    f"mixed: {name} cannot be mixed; give map-style data sets (len and indexing, "
                    "no blocks)"
                )
        self.own_order = self
        self.names = [*sources]
        self.sets, weights, passes = zip(*sources.values(), strict=True)
        self.weights = [(0, [*map(float, weights)])]
        if 0 in _units(weights):
            raise DataError(
                f"mixed: one of the weights {dict(zip(sources, weights, strict=True))} is below a "
                "millionth of all: raise the weight, or leave the source out"
            )
        sizes = [*map(len, self.sets)]
        self.sizes: Indices = np.array(sizes)
        self.begins: Indices = np.cumsum(self.sizes) - self.sizes
        self.rows = ConcatDataset[Any](self.sets)
        self.facts = [[*facts] for facts in zip(sources, sizes, passes, strict=True)]
        self.text = f"{self.facts} {self.weights}"
        limits = [size * count if count else ENDLESS for _, size, count in self.facts]
        self.limits: Indices = np.array(limits)  # samples of each source in an epoch
        self.places = min(ENDLESS, sum(limits))
        self.phases = lru_cache(self._phases)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index % len(self)]

    def of_epoch(self, seed: int, epoch: int) -> Order:
        return partial(self._indices, seed, epoch)

    def _indices(self, seed: int, epoch: int, places: Indices) -> Indices:
        """Return the indices of the rows at places of an epoch."""
        phases = self.phases(epoch)
        before, after = _counts(phases, places).T, _counts(phases, places + 1).T
        sources = np.argmax(after > before, axis=-1)
        numbers = epoch * self.limits[sources] + before[after > before]
        passes, rows = np.divmod(numbers, self.sizes[sources])
        for source, turn in {*zip(sources.tolist(), passes.tolist(), strict=True)}:
            order = feistel_order(int(self.sizes[source]), seed_of(seed, source), turn)
            taken = (sources == source) & (passes == turn)
            rows[taken] = order(rows[taken])
        found: Indices = passes * len(self) + self.begins[sources] + rows
        return found

    def counts(self, position: int) -> Indices:
        """Return how many samples of each source come before a position."""
        epoch, place = divmod(position, self.places)
        before: Indices = epoch * self.limits + _counts(self.phases(epoch), place)
        return before

    def _phases(self, epoch: int) -> list[Phase]:
        """Return the phases of an epoch: until a source ends, or weights change."""
        phases: list[Phase] = []

        def ended(place: int) -> int:
            return int(np.sum(_counts(phases, place) >= self.limits))

        changes = [(at - epoch * self.places, weights) for at, weights in self.weights]
        begin = 0
        while begin < self.places:
            [*_, weights] = [weights for at, weights in changes if at <= begin]
            units = _units(np.where(_counts(phases, begin) < self.limits, weights, 0.0))
            stop = min([self.places, *(at for at, _ in changes if at > begin)])
            phases.append((begin, stop, units))
            stop = begin + bisect_right(range(begin, stop), ended(begin), key=ended)
            phases[-1] = (begin, stop, units)
            begin = stop
        return phases

    # -- as OwnOrder ------------------------------------------------------------------------------

    def logged(self, begin: int, end: int) -> dict[str, float]:
        counts = self.counts(end)
        shares = (counts - self.counts(begin)) / max(1, end - begin)
        return {
            f"mix/{name}/{key}": value
            for key, values in (("share", shares), ("epoch", counts / self.sizes))
            for name, value in zip(self.names, values.round(6).tolist(), strict=True)
        }

    def notices(self, samples: int) -> list[str]:
        passes = (self.counts(samples) / self.sizes).round(2).tolist()
        told = dict(zip(self.names, passes, strict=True))
        return [f"mixture: passes over each source in this run: {told}"]

    def state(self) -> Any:
        return {"sources": self.facts, "weights": self.weights}

    def restore(self, state: Any, position: int) -> None:
        """Keep the phases of a checkpoint. Other weights than before begin a phase.

        Raises:
            CheckpointError: the mixture had other sources.
        """
        if state["sources"] != self.facts:
            raise CheckpointError(
                f"the mixture had the sources (name, rows, passes) {state['sources']}, and has "
                f"{self.facts}: only weights may change"
            )
        [*_, (_, weights)] = self.weights
        self.weights = [*state["weights"]]
        if self.weights[-1][1] != weights:
            self.weights.append((position, weights))
        self.phases.cache_clear()


# Consecutive samples of an epoch: the first place, that behind the last, and the units of each
# source, by which the samples are divided.
Phase = tuple[int, int, Sequence[int]]


def _counts(phases: Sequence[Phase], places: Any) -> Any:
    """Return how many samples of each source come before a place of an epoch, or before many."""
    return sum(
        np.array(_shares(units, np.clip(places, begin, end) - begin))
        for begin, end, units in phases
    )


def _shares(units: Sequence[int], samples: Any) -> list[Any]:
    """Divide a number of samples. Each source gets one of the next samples, or none."""
    if len(units) == 1:
        return [samples]
    half = len(units) // 2
    first, total = sum(units[:half]), sum(units)
    share = (2 * first * samples + total) // (2 * total or 1)
    return [*_shares(units[:half], share), *_shares(units[half:], samples - share)]


def _units(weights: Any) -> list[int]:
    return [round(UNITS * weight / sum(weights)) for weight in weights]
