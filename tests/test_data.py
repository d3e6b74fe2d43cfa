"""The data order is a pure function of (seed, position, layout), and every sample comes once an epoch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.data import Layout, TrainData, epoch_order, evaluation_batches, share
from trainer.errors import DataError


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def layout(rank: int = 0, world: int = 1, micro: int = 4, accumulation: int = 1) -> Layout:
    return Layout(rank=rank, world_size=world, micro_batch_size=micro, accumulation_steps=accumulation)


def consumed(data: TrainData, position: int, steps: int) -> list[list[int]]:
    """Sample ids of each step on this rank, without the borrowed ones."""
    return [
        [int(i) for micro in window.micros if micro.weight for i in micro.batch]
        for window in data.windows(position, steps)
    ]


layouts = st.tuples(st.integers(1, 60), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3))


@given(layouts, st.integers(0, 5))
def test_each_epoch_is_a_permutation_whatever_the_layout(shape: tuple[int, int, int, int], seed: int) -> None:
    size, world, micro, accumulation = shape
    ranks = [TrainData(Numbers(size), layout(r, world, micro, accumulation), seed=seed) for r in range(world)]
    per_epoch = ranks[0].steps_per_epoch
    steps = [consumed(rank, 0, 2 * per_epoch) for rank in ranks]
    alone = TrainData(Numbers(size), layout(micro=micro * accumulation * world), seed=seed)
    for number, expected in enumerate(consumed(alone, 0, 2 * per_epoch)):
        assert sorted(i for rank in steps for i in rank[number]) == sorted(expected)
    for epoch in range(2):
        ids = [i for rank in steps for step in rank[epoch * per_epoch : (epoch + 1) * per_epoch] for i in step]
        assert sorted(ids) == list(range(size))


@given(layouts, st.integers(0, 200))
def test_any_position_continues_the_order(shape: tuple[int, int, int, int], skip: int) -> None:
    size, world, micro, accumulation = shape
    data = TrainData(Numbers(size), layout(world - 1, world, micro, accumulation), seed=1)
    windows = list(data.windows(0, 8))
    start = skip % 8
    position = windows[start - 1].end if start else 0
    assert consumed(data, position, 8 - start) == consumed(data, 0, 8)[start:]


def test_all_ranks_take_part_in_a_short_step() -> None:
    counts = [[len(part) for part in share(range(9), layout(rank, 4, 2, 2))] for rank in range(4)]
    assert counts == [[2, 0], [2, 0], [2, 0], [2, 1]]


def test_borrowed_sample_has_no_weight() -> None:
    windows = list(TrainData(Numbers(9), layout(0, 4, 2, 2), seed=0).windows(0, 1))
    assert [micro.weight for micro in windows[0].micros] == [2.0, 0.0]
    assert windows[0].samples == 9


def test_drop_last_leaves_out_the_short_step_only() -> None:
    data = TrainData(Numbers(10), layout(micro=4), seed=0, drop_last=True)
    steps = consumed(data, 0, 4)
    assert data.steps_per_epoch == 2
    assert [len(step) for step in steps] == [4, 4, 4, 4]
    assert steps[2] == epoch_order(10, 0, 1)[:4].tolist()


def test_workers_change_nothing() -> None:
    plain = consumed(TrainData(Numbers(13), layout(1, 2, 3), seed=4), 0, 5)
    assert consumed(TrainData(Numbers(13), layout(1, 2, 3), seed=4, workers=2), 0, 5) == plain


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 6))
def test_evaluation_sees_each_sample_once(size: int, world: int, batch: int) -> None:
    parts = [list(evaluation_batches(Numbers(size), layout(r, world), batch_size=batch)) for r in range(world)]
    assert len({len(part) for part in parts}) == 1, "every rank has as many batches"
    assert sorted(int(i) for part in parts for ids, counts in part if counts for i in ids) == list(range(size))


def test_streams_and_empty_sets_are_refused() -> None:
    with pytest.raises(DataError, match=r"Data.train is a generator without length"):
        TrainData((i for i in range(3)), layout(), seed=0)
    with pytest.raises(DataError, match=r"Data.train is empty"):
        TrainData(Numbers(0), layout(), seed=0)
    with pytest.raises(DataError, match=r"drop_last: 3 samples do not fill one global batch of 4"):
        TrainData(Numbers(3), layout(), seed=0, drop_last=True)
