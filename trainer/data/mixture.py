"""Several data sets mixed by weight: an order of their rows, exact on any layout.

The samples of a run are cut into periods of 1,000. The weights give each source a number of the
slots of a period, and the slots are permuted anew for each period. Each source gives its rows in an
order of its own, pass after pass. So the source and the row at a position follow from the seed and
the position alone: nothing is drawn, nothing drifts, and a checkpoint needs the position only.

A source ends behind its last pass, and its slots go to the others in proportion. This moment, and a
change of weights at a resume, begin a new phase, with slots of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..errors import CheckpointError, DataError
from ..text import listed
from .batches import Layout, size_of
from .order import Indices, Order, order_for, order_of
from .seeds import seed_of

PERIOD = 1000
_FOREVER = 2**60  # rows of a source without an end


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

    The share of rows of each source is exact in every aligned thousand of samples. A source that
    has a number of passes ends behind the last pass, and its share goes to the others. Otherwise a
    source is repeated without end, and ``max_steps`` ends the run.

    Raises:
        DataError: a source is empty, is a stream, or has less than a thousandth of the weights.
    """
    return Mixed({name: Source(*source) for name, source in sources.items()})


class Mixed:
    """The rows of all sources, one source behind the other.

    An index beyond the last row is the same row in a later pass, so that an augmentation draws
    other numbers.
    """

    def __init__(self, sources: Mapping[str, Source]) -> None:
        sizes = {name: size_of(source.data, f"mixed: {name}") for name, source in sources.items()}
        streams = [name for name, size in sizes.items() if size is None]
        if streams or not sources:
            raise DataError(
                f"mixed: {listed(streams) or 'nothing'} cannot be mixed; give map-style data sets "
                "(len and indexing)"
            )
        self.sets = [source.data for source in sources.values()]
        lengths = [size or 0 for size in sizes.values()]
        self.ends = np.cumsum(lengths).tolist()
        # A Dataset of ``datasets`` has a version that is no text.
        versions = (getattr(data, "version", "") for data in self.sets)
        self.version = "-".join(version for version in versions if isinstance(version, str))
        self.own_order = MixedOrder(sources, lengths)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Any:
        row = index % len(self)
        source = bisect_right(self.ends, row)
        return self.sets[source][row - (self.ends[source - 1] if source else 0)]


class MixedOrder:
    """The order of a mixture, as ``OwnOrder`` describes it.

    Attributes:
        changes: position and weights, from the start of the run and from each change on.
    """

    most_workers = None

    def __init__(self, sources: Mapping[str, Source], sizes: Sequence[int]) -> None:
        self.names = list(sources)
        self.passes = [source.passes for source in sources.values()]
        self.sizes = np.array(sizes, np.int64)
        endless = _FOREVER // self.sizes
        passes = np.array([count or 0 for count in self.passes], np.int64)
        self.limits = self.sizes * np.where(passes, passes, endless)
        self.places = None if None in self.passes else int(self.limits.sum())
        weights = [float(source.weight) for source in sources.values()]
        self.changes: list[tuple[int, list[float]]] = [(0, weights)]
        for name, weight, slots in zip(self.names, weights, _slots(np.array(weights)), strict=True):
            if not slots:
                raise DataError(
                    f"mixed: the weight {weight:g} of {name!r} is below a thousandth of all "
                    "weights: raise the weight, or leave the source out"
                )

    def lay_out(self, layout: Layout) -> None:
        """Do nothing: no layout matters."""

    def of_epoch(self, seed: int, epoch: int) -> Order:
        return MixedEpoch(self, seed, epoch)

    def counts(self, seed: int, position: int) -> Indices:
        """Return how many samples of each source come before a position."""
        epoch, place = divmod(position, self.places or _FOREVER)
        return epoch * self.limits + MixedEpoch(self, seed, epoch).counts(place)

    # -- as OwnOrder ------------------------------------------------------------------------------

    def logged(self, seed: int, begin: int, end: int) -> dict[str, float]:
        counts = self.counts(seed, end)
        shares = (counts - self.counts(seed, begin)) / max(1, end - begin)
        values = {}
        for name, share, count, size in zip(self.names, shares, counts, self.sizes, strict=True):
            values[f"mix/{name}/share"] = round(float(share), 6)
            values[f"mix/{name}/epoch"] = round(float(count / size), 6)
        return values

    def notices(self, seed: int, samples: int) -> list[str]:
        passes = self.counts(seed, samples) / self.sizes
        told = [f"{name} {count:.2f}" for name, count in zip(self.names, passes, strict=True)]
        return [f"mixture: passes over each source in this run: {listed(told, 8)}"]

    @property
    def text(self) -> str:
        """Return the sources and their weights, which ranks and a resumed run must share."""
        return f"{self._sources()} {self.changes[-1][1]}"

    def _sources(self) -> list[list[Any]]:
        facts = zip(self.names, self.sizes.tolist(), self.passes, strict=True)
        return [list(of_source) for of_source in facts]

    def state(self) -> Any:
        return {"sources": self._sources(), "changes": [list(change) for change in self.changes]}

    def restore(self, state: Any, position: int) -> None:
        """Keep the phases of a checkpoint. Other weights than before begin a phase.

        Raises:
            CheckpointError: the mixture had other sources.
        """
        if state["sources"] != self._sources():
            raise CheckpointError(
                f"the mixture had the sources (name, rows, passes) {state['sources']}, and has "
                f"{self._sources()}: only weights may change"
            )
        weights = self.changes[-1][1]
        self.changes = [(begin, list(of_change)) for begin, of_change in state["changes"]]
        if self.changes[-1][1] != weights:
            self.changes.append((position, weights))


class _Phase(NamedTuple):
    """Consecutive samples with the same slots.

    Args:
        begin: the place of the first sample in the epoch.
        used: samples of each source before.
        slots: of each source in a period.
    """

    begin: int
    used: Indices
    slots: Indices
    seed: int

    def table(self, period: int) -> Indices:
        """Return the source of each slot of a period."""
        return _table(self.seed, self.begin, period, tuple(self.slots.tolist()))

    def counts(self, place: int) -> Indices:
        """Return how many samples of each source come before a place."""
        period, slot = divmod(place - self.begin, PERIOD)
        begun = np.bincount(self.table(period)[:slot], minlength=len(self.slots))
        return self.used + period * self.slots + begun

    def end_of(self, source: int, limit: int) -> int:
        """Return the place behind the sample of a source whose number is ``limit``."""
        period, number = divmod(limit - self.used[source] - 1, self.slots[source])
        slot = np.flatnonzero(self.table(int(period)) == source)[number]
        return int(self.begin + period * PERIOD + slot + 1)


class MixedEpoch:
    """The order of an epoch of a mixture."""

    def __init__(self, order: MixedOrder, seed: int, epoch: int) -> None:
        self._order = order
        self._seed = seed_of(seed, epoch)
        # The order of the last pass that was read of each source.
        self._passes: dict[int, tuple[int, Order]] = {}
        self._phases = list(self._read_phases(epoch * (order.places or _FOREVER)))

    def _read_phases(self, begin: int) -> Iterator[_Phase]:
        """Yield the phases of an epoch that begins at a position."""
        order = self._order
        changes = [(max(0, at - begin), weights) for at, weights in order.changes]
        used = np.zeros_like(order.sizes)
        for (place, weights), (stop, _) in pairwise([*changes, (_FOREVER, [])]):
            while place < stop and (used < order.limits).any():
                slots = _slots(np.where(used < order.limits, weights, 0.0))
                phase = _Phase(place, used, slots, self._seed)
                yield phase
                ends = [
                    phase.end_of(source, int(order.limits[source]))
                    for source in np.flatnonzero(slots).tolist()
                    if order.passes[source]
                ]
                place = min([stop, *ends])
                used = phase.counts(place)

    def counts(self, place: int) -> Indices:
        """Return how many samples of each source come before a place."""
        return self._phase_at(place)[0].counts(place)

    def _phase_at(self, place: int) -> tuple[_Phase, int]:
        """Return the phase of a place, and the first place of the next phase."""
        begins = [phase.begin for phase in self._phases]
        number = bisect_right(begins, place)
        return self._phases[number - 1], [*begins, _FOREVER][number]

    def __getitem__(self, part: slice, /) -> Indices:
        found = [np.empty(0, np.int64)]
        place = part.start
        while place < part.stop:
            phase, end = self._phase_at(place)
            period, slot = divmod(place - phase.begin, PERIOD)
            taken = phase.table(period)[slot : slot + min(part.stop, end) - place]
            found.append(self._rows(taken, phase.counts(place)))
            place += len(taken)
        return np.concatenate(found)

    def _rows(self, taken: Indices, numbers: Indices) -> Indices:
        """Return the indices in ``Mixed`` of samples, from their sources and the next of each."""
        sizes = self._order.sizes
        rows = np.empty_like(taken)
        for source in np.unique(taken).tolist():
            of_source = numbers[source] + np.arange(np.count_nonzero(taken == source))
            turns, places = np.divmod(of_source, sizes[source])
            passes = [
                self._pass(source, turn)[places[turns == turn][0] : places[turns == turn][-1] + 1]
                for turn in np.unique(turns).tolist()
            ]
            rows[taken == source] = (
                np.concatenate(passes) + sizes[:source].sum() + turns * sizes.sum()
            )
        return rows

    def _pass(self, source: int, turn: int) -> Order:
        """Return the order of a pass over a source."""
        if self._passes.get(source, (None,))[0] != turn:
            size = int(self._order.sizes[source])
            order = order_of(order_for(size))(size, seed_of(self._seed, source), turn)
            self._passes[source] = turn, order
        return self._passes[source][1]


def _slots(weights: np.ndarray[Any, Any]) -> Indices:
    """Return the slots of each source in a period, by largest remainders."""
    exact = weights / weights.sum() * PERIOD
    slots = np.floor(exact).astype(np.int64)
    largest = np.argsort(slots - exact, kind="stable")
    slots[largest[: PERIOD - slots.sum()]] += 1
    return slots  # type: ignore[no-any-return]


@lru_cache(maxsize=64)
def _table(seed: int, begin: int, period: int, slots: tuple[int, ...]) -> Indices:
    """Return the source of each slot of a period, permuted."""
    table = np.repeat(np.arange(len(slots)), slots)
    return np.random.default_rng((seed, begin, period)).permutation(table)
