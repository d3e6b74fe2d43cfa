"""Streams: the same samples at the same step on every layout, epochs that end where the stream
ends, and resuming.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from datasets import IterableDataset as HuggingFaceStream
from hypothesis import given
from hypothesis import strategies as st
from layouts import DrawingStream, heavy, layout

from trainer.data.batches import Layout
from trainer.data.stream import StreamData
from trainer.errors import DataError


class Count(torch.utils.data.IterableDataset[torch.Tensor]):
    """0 ... size - 1, shifted by 100 in each further epoch."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from (torch.tensor(100 * self.epoch + i) for i in range(self.size))


class Stateful(Count):
    """The same, with a state."""

    at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for i in range(self.at, self.size):
            self.at = i + 1
            yield torch.tensor(100 * self.epoch + i)
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def rows(size: int) -> Iterator[dict[str, int]]:
    yield from ({"x": i} for i in range(size))


def ids(data: StreamData, steps: int, position: int = 0) -> list[list[int]]:
    """Sample ids of each step on this rank, without padding batches."""
    return [
        [int(i) for micro in window.micros if micro.weight for i in values(micro.batch)]
        for window in data.windows(position, steps)
    ]


def values(batch: Any) -> torch.Tensor:
    return batch["x"] if isinstance(batch, dict) else batch


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_the_global_batches_are_the_stream_whatever_the_layout(
    size: int, world: int, micro: int, accum: int
) -> None:
    ranks = [StreamData(Count(size), layout(r, world, micro, accum), seed=0) for r in range(world)]
    batch = micro * accum * world
    per_epoch = -(-size // batch)
    steps = list(zip(*(ids(rank, 2 * per_epoch) for rank in ranks), strict=True))
    for epoch in range(2):
        for number in range(per_epoch):
            expected = range(number * batch, min(size, (number + 1) * batch))
            got = sorted(i for rank in steps[epoch * per_epoch + number] for i in rank)
            assert got == [100 * epoch + i for i in expected]


def test_drop_last_leaves_out_the_short_step() -> None:
    data = StreamData(Count(10), layout(micro=4), seed=0, drop_last=True)
    assert [len(step) for step in ids(data, 4)] == [4, 4, 4, 4]
    assert data.state()["samples"] == 16 and data.epochs_at(16) == 1.0


def gone_on(
    make: Callable[[Layout], StreamData], after: int, count: int
) -> tuple[list[list[int]], StreamData, dict[str, Any], int]:
    """Go on with two ranks, and compare with a run that nobody stopped.

    Returns the steps of the whole run, the run that was stopped, its state, and how many samples a
    rank has to read over.
    """
    whole = ids(make(layout(micro=4)), count)
    first = make(layout(micro=4))
    assert ids(first, after) == whole[:after]
    state = json.loads(json.dumps(first.state()))
    ranks = [make(layout(rank, 2, 2)) for rank in range(2)]
    positions = {rank.restore(state) for rank in ranks}
    assert positions == {state["samples"]}
    read_over = ranks[0].samples_to_read_over()
    rest = [ids(rank, count - after, state["samples"]) for rank in ranks]
    together = [sorted(a + b) for a, b in zip(*rest, strict=True)]
    assert together == [sorted(step) for step in whole[after:]]
    return whole, first, state, read_over


@pytest.mark.parametrize("kind", [Count, Stateful, "hugging face"])
@pytest.mark.parametrize("after", [1, 2, 3, 4, 5])
def test_it_resumes_where_its_state_was_taken(kind: Any, after: int) -> None:
    def fresh(layout: Layout) -> StreamData:
        generator = {"size": 10}
        stream = (
            HuggingFaceStream.from_generator(rows, gen_kwargs=generator)
            if kind == "hugging face"
            else kind(10)
        )
        return StreamData(stream, layout, seed=0)

    *_, state, read_over = gone_on(fresh, after, 7)
    assert read_over == (state["offset"] if kind is Count else 0)


def shuffled(seed: int | None, size: int = 60) -> HuggingFaceStream:
    stream = HuggingFaceStream.from_generator(rows, gen_kwargs={"size": size})
    return stream.shuffle(seed=seed, buffer_size=16).map(lambda row: {"x": row["x"]})


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("after", [1, 4, 8, 18])
def test_a_shuffle_buffer_is_resumed_exactly_on_any_number_of_ranks(
    after: int, workers: int
) -> None:
    """Its state would be without the buffer: 6 of 320 samples came twice (datasets 5.2), and others
    never.
    """
    # (In a loading process datasets shuffles in another order.)
    whole, first, state, read_over = gone_on(
        lambda layout: StreamData(shuffled(7), layout, seed=0, workers=workers), after, 30
    )
    assert state["stream"] is None and state["samples"] == 4 * after
    [notice] = first.notices(4)
    assert "trainer.blocks(files) shuffles without a buffer" in notice
    assert read_over == state["offset"] == 4 * after % 60
    for epoch in (whole[:15], whole[15:]):
        assert sorted(number for step in epoch for number in step) == [*range(60)]
    assert whole[:15] != whole[15:] and whole[0] != [0, 1, 2, 3]


def test_a_stream_that_begins_otherwise_is_not_resumed() -> None:
    first = StreamData(shuffled(7), layout(), seed=0)
    ids(first, 3)
    again = StreamData(shuffled(8), layout(), seed=0)  # as a shuffle without a seed does
    with pytest.raises(
        DataError, match=r"^Data\.train does not begin with the sample with which the resumed run"
    ):
        ids(again, 1, again.restore(first.state()))


def drawn(data: StreamData, steps: int, position: int = 0) -> torch.Tensor:
    """Read the windows of a rank, one tensor a step."""
    steps_read = []
    for window in data.windows(position, steps):
        steps_read.append(torch.cat([micro.batch for micro in window.micros if micro.weight]))
    return torch.stack(steps_read)


def test_what_a_stream_draws_is_the_same_on_every_rank_and_in_a_resumed_run() -> None:
    whole = drawn(StreamData(DrawingStream(), layout(0, 1, 4), seed=3), 6)
    parts = []
    for rank, workers in ((0, 0), (1, 1)):
        first = StreamData(DrawingStream(), layout(rank, 2, 2), seed=3, workers=workers)
        begun = drawn(first, 2)
        resumed = StreamData(DrawingStream(), layout(rank, 2, 2), seed=3, workers=workers)
        rest = drawn(resumed, 4, resumed.restore(first.state()))
        parts.append(torch.cat([begun, rest]))
    assert torch.equal(torch.cat(parts, dim=1), whole)

    first_epoch, second_epoch = whole[:3, :, 0], whole[3:, :, 0]
    assert sorted(first_epoch.flatten().tolist()) == [*range(12)]
    assert sorted(second_epoch.flatten().tolist()) == [*range(12)]
    assert not torch.equal(first_epoch, second_epoch)
    assert len(set(whole[..., 1].flatten().tolist())) == 24, "each sample draws its own noise"

    other_seed = drawn(StreamData(DrawingStream(), layout(0, 1, 4), seed=4), 3)
    assert not torch.equal(other_seed, whole[:3])


@pytest.mark.parametrize("workers", [0, 1])
def test_reading_a_stream_leaves_the_generators_of_the_process_as_they_were(workers: int) -> None:
    def states() -> list[Any]:
        _, numbers, place, *_ = np.random.get_state()
        return [random.getstate(), list(numbers), place, torch.get_rng_state().tolist()]

    before = states()
    drawn(StreamData(DrawingStream(), layout(), seed=3, workers=workers), 2)
    assert states() == before


def test_a_batch_without_weight_is_replaced_by_a_padding_batch() -> None:
    ranks = [StreamData(Count(9), layout(r, 3, micro=3), seed=0, weight_of=heavy) for r in range(3)]
    micros = [micro for rank in ranks for window in rank.windows(0, 1) for micro in window.micros]
    assert [micro.weight for micro in micros] == [0, 0, 3]
    assert [micro.batch.tolist() for micro in micros] == [[6, 6], [6, 6], [6, 7, 8]]


@pytest.mark.parametrize("workers", [0, 1])
def test_streams_that_end_too_early(workers: int) -> None:
    def refused(stream: Any, steps: int, match: str, **more: Any) -> None:
        with pytest.raises(DataError, match=match):
            ids(StreamData(stream, layout(), seed=0, workers=workers, **more), steps)

    refused(
        Count(0), 1, r"Data.train gave no global batch in epoch 0, after 0 samples: it is empty"
    )
    refused(
        iter(list(rows(10))), 4, r"Data.train gave no global batch in epoch 1, after 10 samples"
    )
    refused(Count(3), 1, r"smaller than a global batch with drop_last", drop_last=True)
