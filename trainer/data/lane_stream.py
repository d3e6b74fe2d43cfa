"""Rows whose number nobody knows before they are read: documents that are packed, streams of a hub.

Shards are dealt to lanes: shard i of the shuffled shards of an epoch goes to lane ``i % lanes``. A
lane reads its shards in pieces, shuffles each piece, and never ends. Sample g is sample
``g // lanes`` of lane ``g % lanes``, so the samples of a step do not depend on the ranks, and each
rank reads its lanes. A checkpoint holds a cursor of each lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, count, islice
from typing import Any

from ..errors import DataError
from .batches import Layout
from .lanes import InLanes
from .order import epoch_order

PIECE = 1000  # rows of a stream that are read, shuffled and kept together
# The lane, its shards before, the piece of the shard, and the number of the piece's first sample.
Cursor = Sequence[int]


class Shards(InLanes):
    """A stream of the library ``datasets``, by its shards."""

    def __init__(self, stream: Any) -> None:
        super().__init__({"shards of the stream": stream.num_shards}, stream.num_shards)
        self._stream = stream

    def pieces(self, shard: int, piece: int) -> Iterator[list[Any]]:
        """Yield the rows of a shard, from a piece on."""
        rows = iter(self._stream.shard(self.shards, shard).skip(piece * PIECE))
        while read := [*islice(rows, PIECE)]:
            yield read


class LaneStream:
    """A stream of samples, of which a rank reads those of its lanes.

    Args:
        own_order: of the rows, in shards.
        form: makes samples of the rows of a piece.
    """

    def __init__(self, own_order: InLanes, form: Callable[[list[Any]], list[Any]] = list) -> None:
        self.own_order = own_order
        self.form = form
        self._cursors: dict[int, Cursor] = {}

    def __iter__(self) -> Iterator[Any]:
        for shard in range(self.own_order.shards):
            for rows in self.own_order.pieces(shard, 0):
                yield from self.form(rows)

    def state_dict(self) -> list[Cursor]:
        return [*self._cursors.values()]

    def load_state_dict(self, state: Sequence[Cursor]) -> None:
        # Of a lane that several ranks read, the furthest cursor is the last.
        self._cursors = {cursor[0]: cursor for cursor in state}

    def batches(self, layout: Layout, seed: int, offset: int) -> Iterator[list[Any]]:
        """Yield global batches without the samples of other ranks, in whose places is None.

        The first has also the first two samples of the batch, which ranks compare.
        """
        lanes = cache(lambda lane: self._lane(seed, *self._cursors.get(lane, (lane, 0, 0, 0))))
        if not offset:  # the same stream was read before
            self._cursors = {}
        wanted = {*range(offset, offset + min(2, layout.global_batch_size))}
        for begin in count(offset, layout.global_batch_size):
            taken = range(begin, begin + layout.global_batch_size)
            wanted.update(chain(*self.own_order.parts(taken, layout)))
            batch: list[Any] = [None] * len(taken)
            for place in sorted(wanted):
                number, lane = divmod(place, self.own_order.lanes)
                found = next(sample for sample in lanes(lane) if sample[0] == number)
                _, self._cursors[lane], batch[place - begin] = found
            yield batch
            wanted.clear()

    def _lane(
        self, seed: int, lane: int, begun: int, piece: int, first: int
    ) -> Iterator[tuple[int, Cursor, Any]]:
        """Yield the number, the cursor and the sample of each sample of a lane, from a cursor."""
        order = self.own_order
        own = range(lane, order.shards, order.lanes)
        number = first
        for turn in count(begun):
            epoch, at = divmod(turn, len(own))
            shard = int(epoch_order(order.shards, seed, epoch)[own[at]])
            for part, rows in enumerate(order.pieces(shard, piece), piece):
                samples = self.form(rows)
                cursor = (lane, turn, part, number)
                for place in epoch_order(len(samples), seed, epoch, shard, part).tolist():
                    yield number, cursor, samples[place]
                    number += 1
            piece = 0
            if number == first and turn - begun >= len(own):
                raise DataError(f"Data.train: shards of {[*order.files][:3]} give no sample")
