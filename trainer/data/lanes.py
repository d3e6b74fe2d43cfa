"""An order of rows that are read in blocks: shuffled, and each rank reads its part of the blocks.

The blocks of an epoch are shuffled, and their sequence is cut into equal parts, the lanes. Sample g
of the epoch is sample ``g // lanes`` of lane ``g % lanes``, and the rows of neighbouring blocks of
a lane are permuted among each other. So the rows of a step follow from (seed, epoch, position)
alone, as in every other order. The samples of a step are dealt to the ranks by lane, so a rank
keeps its lanes, and reads about 1 / world_size of the blocks.
"""

from __future__ import annotations

import numpy as np

from .batches import Layout
from .order import Indices

MOST_LANES = 256
GROUP = 2  # blocks of a lane whose rows are permuted among each other


def lanes_for(global_batch_size: int) -> int:
    """Return the number of lanes: the largest divisor of a global batch up to ``MOST_LANES``."""
    counts = range(1, min(global_batch_size, MOST_LANES) + 1)
    return max(count for count in counts if global_batch_size % count == 0)


class LaneEpoch:
    """The order of an epoch.

    Args:
        sizes: rows of each block, in the order of the files.
    """

    def __init__(self, sizes: Indices, seed: int, epoch: int, lanes: int) -> None:
        self._key = (seed, epoch)
        self.lanes = lanes
        blocks = np.random.default_rng(self._key).permutation(len(sizes))
        self._ends = np.cumsum(sizes[blocks])
        # From a place in the sequence of shuffled blocks to the row.
        self._shift = (np.cumsum(sizes) - sizes)[blocks] - (self._ends - sizes[blocks])
        # Lanes with a sample more come first: the last round of samples has the first lanes.
        each, more = divmod(int(self._ends[-1]), lanes)
        self._begins = np.cumsum([0, *[each + 1] * more, *[each] * (lanes - more)])
        self._cuts: dict[int, Indices] = {}
        self._group: dict[int, tuple[int, Indices]] = {}  # begin and permutation, by lane

    def __getitem__(self, part: slice, /) -> Indices:
        return self.at(np.arange(part.start, part.stop))

    def at(self, places: Indices) -> Indices:
        """Return the rows at places of the epoch."""
        found = np.empty_like(places)
        numbers, lanes = np.divmod(places, self.lanes)
        for slot, (lane, number) in enumerate(zip(lanes.tolist(), numbers.tolist(), strict=True)):
            begin, permuted = self._group_of(lane, number)
            found[slot] = self._begins[lane] + begin + permuted[number - begin]
        return found + self._shift[np.searchsorted(self._ends, found, side="right")]

    def _group_of(self, lane: int, number: int) -> tuple[int, Indices]:
        """Return the first sample of a lane's group of blocks, and the permutation of the group."""
        begin, permuted = self._group.get(lane, (0, self._begins[:0]))
        if not begin <= number < begin + len(permuted):
            cuts = self._cuts_of(lane)
            group = int(np.searchsorted(cuts, number, side="right"))
            begin = int(cuts[group - 1]) if group else 0
            entropy = (*self._key, lane, group)
            permuted = np.random.default_rng(entropy).permutation(int(cuts[group]) - begin)
            self._group[lane] = begin, permuted
        return begin, permuted

    def _cuts_of(self, lane: int) -> Indices:
        """Return the ends of a lane's groups: of whole blocks, but for both ends of the lane."""
        if lane not in self._cuts:
            low, high = self._begins[lane : lane + 2]
            first = np.searchsorted(self._ends, low, "right")
            ends = self._ends[first : np.searchsorted(self._ends, high)]
            # Lanes change their groups at different steps.
            self._cuts[lane] = np.append(ends[lane % GROUP :: GROUP], high) - low
        return self._cuts[lane]

    def of_rank(self, taken: range, layout: Layout) -> list[list[int]]:
        """Return the rows of a rank's micro-batches in a step over the places ``taken``."""
        places = np.array(taken)
        by_lane = places[np.argsort(places % self.lanes, kind="stable")]
        count, world_size = len(taken), layout.world_size
        begin, end = (count * rank // world_size for rank in (layout.rank, layout.rank + 1))
        rows = self.at(by_lane[begin:end]).tolist()
        starts = range(0, -(-count // world_size), layout.micro_batch_size)
        return [rows[start : start + layout.micro_batch_size] for start in starts]
