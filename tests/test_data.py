"""The data order is a pure function of (seed, position, layout), and every sample comes once an epoch."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.indexed import Layout, TrainData, epoch_order, evaluation_batches, share
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


def test_what_is_no_data_set_and_empty_sets_are_refused() -> None:
    with pytest.raises(DataError, match=r"Data.train is a object, without length and indexing"):
        TrainData(object(), layout(), seed=0)
    with pytest.raises(DataError, match=r"Data.train is empty"):
        TrainData(Numbers(0), layout(), seed=0)
    with pytest.raises(DataError, match=r"drop_last: 3 samples do not fill one global batch of 4"):
        TrainData(Numbers(3), layout(), seed=0, drop_last=True)


def heavy(batch: torch.Tensor) -> int:
    """A weight that samples below 6 do not have."""
    return int((batch >= 6).sum())


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_batch_without_weight_is_replaced_by_a_sample_that_has_some(world: int) -> None:
    ranks = [TrainData(Numbers(9), layout(r, world, micro=1), seed=0, weight_of=heavy) for r in range(world)]
    micros = [
        micro for rank in ranks for window in rank.windows(0, 2 * rank.steps_per_epoch) for micro in window.micros
    ]
    assert sum(micro.weight for micro in micros) == 2 * 3
    assert all(heavy(micro.batch) for micro in micros), "no batch without weight goes through the model"
    assert {int(micro.batch) for micro in micros if not micro.weight} == {6}


def test_data_without_any_weight() -> None:
    data = TrainData(Numbers(5), layout(), seed=0, weight_of=heavy)
    with pytest.raises(DataError, match=r"none of its 5 samples has a weight; check Task.weight and the labels"):
        next(data.windows(0, 1))


# Randomness of the samples


def shaken(item: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.stack([item.double(), torch.rand((), generator=generator, dtype=torch.float64)])


def by_step(world: int, workers: int, position: int = 0) -> list[list[tuple[float, ...]]]:
    """What all ranks together train on at each of six steps (two epochs of 17 samples)."""
    ranks = [
        TrainData(Numbers(17), layout(r, world, 6 // world), seed=3, augment=shaken, workers=workers)
        for r in range(world)
    ]
    steps = zip(*(rank.windows(position, 6) for rank in ranks), strict=True)
    return [
        sorted(tuple(i.tolist()) for w in step for micro in w.micros if micro.weight for i in micro.batch)
        for step in steps
    ]


def test_augmentation_is_the_same_on_every_layout_and_number_of_workers() -> None:
    alone = by_step(1, 0)
    assert by_step(2, 0) == alone
    assert by_step(3, 0) == alone
    assert by_step(2, 2) == alone
    drawn = {noise for step in alone for _, noise in step}
    assert len(drawn) == 2 * 17, "each sample of each epoch draws its own"
    assert by_step(2, 0, position=6)[:5] == alone[1:], "and draws the same after a restart"


class Random(Numbers):
    """Items that draw from the generators of the process."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([random.random(), float(np.random.random()), float(torch.rand(()))], dtype=torch.float64)


def test_workers_draw_differently_on_each_rank_and_repeat_from_run_to_run() -> None:
    def drawn(rank: int, seed: int) -> list[list[float]]:
        data = TrainData(Random(8), layout(rank, 2, 4), seed=seed, workers=2)
        return [row for window in data.windows(0, 2) for micro in window.micros for row in micro.batch.T.tolist()]

    first = drawn(0, seed=5)
    assert drawn(0, seed=5) == first
    for other in (drawn(1, seed=5), drawn(0, seed=6)):
        assert all(not set(ours) & set(theirs) for ours, theirs in zip(first, other, strict=True))


# Hugging Face data sets


def test_a_hugging_face_data_set_is_map_style() -> None:
    rows = Dataset.from_dict({"x": [float(i) for i in range(11)], "y": list(range(11))})
    for workers in (0, 2):
        data = TrainData(rows, layout(1, 2, 2), seed=0, workers=workers)
        batches = [micro.batch for window in data.windows(0, 3) for micro in window.micros if micro.weight]
        order = epoch_order(11, 0, 0)
        assert [int(y) for batch in batches for y in batch["y"]] == [*order[2:4], *order[6:8], *order[9:11]]
        assert all(torch.equal(batch["x"].long(), batch["y"]) for batch in batches)
