"""An order of rows that are read in blocks: shuffled, and each rank reads its part of the blocks.

The blocks of an epoch are shuffled, and the rows of each block. The sequence of all rows is cut
into equal parts, the lanes, and sample g of the epoch is sample ``g // lanes`` of lane
``g % lanes``. So the rows of a step follow from (seed, epoch, position) alone, as in every other
order. The samples of a step are dealt to the ranks by lane, so a rank keeps its lanes, and reads
about 1 / world_size of the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import CheckpointError, DataError
from ..text import listed
from .batches import Layout, share_of_rank
from .order import Indices, Order, OwnOrder, epoch_order

MOST_LANES = 256


class InLanes(OwnOrder):
    """Rows that are read in lanes.

    Args:
        files: facts by name, which a resumed run must share: the size of each file.
        shards: parts of the rows that are dealt to lanes.

    Attributes:
        lanes: of the first global batch of the run, in all its resumptions.
    """

    lanes = 1

    def __init__(self, files: dict[str, int], shards: int) -> None:
        self.files = files
        self.shards = shards
        self.text = f"{len(files)} files, {sum(files.values())} bytes"

    def lay_out(self, layout: Layout, workers: int) -> None:
        """Take as many lanes as the largest divisor of a global batch up to their limits.

        Raises:
            DataError: each layout must have the same micro-batches.
        """
        if layout.whole_micro_batches:
            raise DataError("blocks: ranks take other micro-batches of a step: drop same_bits")
        self.layout = layout
        self.readers = max(1, workers)
        batch = layout.global_batch_size
        most = min(MOST_LANES, self.shards)
        self.plan(max(count for count in range(1, most + 1) if batch % count == 0))

    def parts(self, taken: range, layout: Layout) -> Sequence[Sequence[int]]:
        """Return the places of a rank's micro-batches: those of its lanes, in their order."""
        by_lane = sorted(taken, key=lambda place: place % self.lanes)
        own = share_of_rank(by_lane, len(taken), layout)
        starts = range(0, -(-len(taken) // layout.world_size), layout.micro_batch_size)
        return [own[at : at + layout.micro_batch_size] for at in starts]

    def shares(self, part: Sequence[int], layout: Layout) -> Sequence[Sequence[int]]:
        """Cut a micro-batch by lane: each loading process reads the blocks of its lanes alone."""
        cuts: list[list[int]] = [[] for _ in range(self.readers)]
        of_all_ranks, first = layout.world_size * self.readers, layout.rank * self.readers
        for place in part:
            process = place % self.lanes * of_all_ranks // self.lanes - first
            # A lane on a border of two ranks belongs to a process of each.
            cuts[min(max(process, 0), self.readers - 1)].append(place)
        return cuts

    def plan(self, lanes: int) -> None:
        """Keep the number of lanes, and the blocks that the layout needs for them."""
        self.lanes = lanes

    def pieces(self, shard: int, piece: int) -> Iterator[list[Any]]:
        """Yield the rows of a shard in lists, from the list with the number ``piece`` on."""
        raise NotImplementedError

    def notices(self, samples: int) -> list[str]:
        return [f"blocks: {self.shards} in {self.lanes} lanes"]

    def state(self) -> Any:
        return {"files": self.files, "lanes": self.lanes}

    def restore(self, state: Any, position: int) -> None:
        """Keep the lanes of a checkpoint.

        Raises:
            CheckpointError: there are other files than before.
        """
        changed = sorted(dict(self.files.items() ^ state["files"].items()))
        if changed:
            raise CheckpointError(
                f"the files of the training data changed: {listed(changed)}; restore them, or "
                "begin a new run with weights:"
            )
        self.plan(state["lanes"])


def lane_order(sizes: Indices, seed: int, epoch: int, lanes: int) -> Order:
    """Return the order of an epoch. ``sizes`` are the rows of each block, in the order of files."""
    blocks = epoch_order(len(sizes), seed, epoch)
    begins = (np.cumsum(sizes) - sizes)[blocks]
    ends = np.cumsum(sizes[blocks])

    @lru_cache(lanes + 1)
    def shuffled(slot: int) -> Indices:
        """Return the rows of a block, by its number in the sequence of shuffled blocks."""
        block = int(blocks[slot])
        rows: Indices = begins[slot] + epoch_order(int(sizes[block]), seed, epoch, block)
        return rows

    def rows_at(places: Indices) -> Indices:
        numbers, own = np.divmod(places, lanes)
        each, more = divmod(int(ends[-1]), lanes)
        in_sequence = own * each + np.minimum(own, more) + numbers
        slots = np.searchsorted(ends, in_sequence, side="right")
        pairs = zip(slots.tolist(), (in_sequence - ends[slots]).tolist(), strict=True)
        return np.array([shuffled(slot)[behind_end] for slot, behind_end in pairs], np.int64)

    return rows_at
