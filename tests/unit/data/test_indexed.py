"""The data order is a pure function of (seed, position, layout), and every sample comes once an
epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from layouts import Numbers, consumed, heavy, layout, layouts
from torch import Tensor

from trainer.data.batches import share
from trainer.data.indexed import IndexedData
from trainer.data.order import epoch_order
from trainer.data.stream import StreamData
from trainer.errors import DataError


@given(layouts, st.integers(0, 5))
def test_each_epoch_is_a_permutation_whatever_the_layout(
    shape: tuple[int, int, int, int], seed: int
) -> None:
    size, world, micro, accumulation = shape
    ranks = [
        IndexedData(Numbers(size), layout(r, world, micro, accumulation), seed=seed)
        for r in range(world)
    ]
    per_epoch = ranks[0].steps_per_epoch
    steps = [consumed(rank, 0, 2 * per_epoch) for rank in ranks]
    alone = IndexedData(Numbers(size), layout(micro=micro * accumulation * world), seed=seed)
    for number, expected in enumerate(consumed(alone, 0, 2 * per_epoch)):
        assert sorted(i for rank in steps for i in rank[number]) == sorted(expected)
    for epoch in range(2):
        ids = [
            i
            for rank in steps
            for step in rank[epoch * per_epoch : (epoch + 1) * per_epoch]
            for i in step
        ]
        assert sorted(ids) == list(range(size))


@given(layouts, st.integers(0, 200))
def test_any_position_continues_the_order(shape: tuple[int, int, int, int], skip: int) -> None:
    size, world, micro, accumulation = shape
    data = IndexedData(Numbers(size), layout(world - 1, world, micro, accumulation), seed=1)
    windows = list(data.windows(0, 8))
    start = skip % 8
    position = windows[start - 1].end if start else 0
    assert consumed(data, position, 8 - start) == consumed(data, 0, 8)[start:]


def test_all_ranks_take_part_in_a_short_step() -> None:
    counts = [[len(part) for part in share(range(9), layout(rank, 4, 2, 2))] for rank in range(4)]
    assert counts == [[2, 0], [2, 0], [2, 0], [2, 1]]


def test_borrowed_sample_has_no_weight() -> None:
    windows = list(IndexedData(Numbers(9), layout(0, 4, 2, 2), seed=0).windows(0, 1))
    assert [micro.weight for micro in windows[0].micros] == [2.0, 0.0]
    assert windows[0].samples == 9


def test_drop_last_leaves_out_the_short_step_only() -> None:
    data = IndexedData(Numbers(10), layout(micro=4), seed=0, drop_last=True)
    steps = consumed(data, 0, 4)
    assert data.steps_per_epoch == 2
    assert [len(step) for step in steps] == [4, 4, 4, 4]
    assert steps[2] == epoch_order(10, 0, 1)[:4].tolist()


def test_workers_change_nothing() -> None:
    plain = consumed(IndexedData(Numbers(13), layout(1, 2, 3), seed=4), 0, 5)
    assert consumed(IndexedData(Numbers(13), layout(1, 2, 3), seed=4, workers=2), 0, 5) == plain


def test_what_is_no_data_set_and_empty_sets_are_refused() -> None:
    with pytest.raises(DataError, match=r"Data.train is a object, without length and indexing"):
        IndexedData(object(), layout(), seed=0)
    with pytest.raises(DataError, match=r"Data.train is empty"):
        IndexedData(Numbers(0), layout(), seed=0)
    with pytest.raises(DataError, match=r"drop_last: 3 samples do not fill one global batch of 4"):
        IndexedData(Numbers(3), layout(), seed=0, drop_last=True)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_batch_without_weight_is_replaced_by_a_sample_that_has_some(world: int) -> None:
    ranks = [
        IndexedData(Numbers(9), layout(r, world, micro=1), seed=0, weight_of=heavy)
        for r in range(world)
    ]
    micros = [
        micro
        for rank in ranks
        for window in rank.windows(0, 2 * rank.steps_per_epoch)
        for micro in window.micros
    ]
    assert sum(micro.weight for micro in micros) == 2 * 3
    assert all(heavy(micro.batch) for micro in micros), (
        "no batch without weight goes through the model"
    )
    assert {int(micro.batch) for micro in micros if not micro.weight} == {6}


def held(items: Sequence[dict[str, Any]]) -> Tensor:
    """A collate that takes its items apart."""
    return torch.stack([item.pop("value") for item in items if item["lock"]])


def test_a_filler_of_a_stream_is_of_an_item_that_no_collate_has_seen() -> None:
    items = [{"value": torch.tensor(float(number)), "lock": True} for number in range(5)]
    data = StreamData(iter(items), layout(0, 2, 2, 2), seed=0, collate=held)
    [window] = data.windows(
        0, 1
    )  # this rank's first micro-batch has the first items, and its second has none
    assert [micro.weight for micro in window.micros] == [2.0, 0.0]


def grown(items: Sequence[dict[str, list[int]]]) -> Tensor:
    """A collate that marks the end of its items, in place."""
    for item in items:
        item["ids"].append(0)
    return torch.tensor([len(item["ids"]) for item in items])


def test_a_filler_does_not_grow_by_collates_that_change_their_items() -> None:
    stream = ({"ids": ids} for _ in range(9) for ids in ([1, 2], [1, 2, 3]))
    data = StreamData(
        stream, layout(1, 2, 1), seed=0, collate=grown, weight_of=lambda lengths: int(lengths) == 3
    )
    fillers = [
        micro.batch for window in data.windows(0, 9) for micro in window.micros if not micro.weight
    ]
    assert len(fillers) == 9 and [*map(int, fillers)] == [3] * 9


@pytest.mark.parametrize("stream", [False, True])
def test_a_filler_takes_items_that_cannot_be_copied_and_collates_that_take_them_apart(
    stream: bool,
) -> None:
    items = [
        {"value": torch.ones((), requires_grad=True) * number, "lock": Lock()}
        for number in range(9)
    ]
    made = StreamData(iter(items), layout(0, 2, 2), seed=0, collate=held) if stream else None
    data = made or IndexedData(items, layout(0, 2, 2), seed=0, collate=held)
    first, second, last = data.windows(0, 3)
    assert (last.samples, last.weight, [micro.counts for micro in last.micros]) == (1, 0.0, [False])
    assert len(last.micros[0].batch) == 2
    assert first.weight == second.weight == 2.0


def test_data_without_any_weight() -> None:
    data = IndexedData(Numbers(5), layout(), seed=0, weight_of=heavy)
    with pytest.raises(
        DataError, match=r"none of its 5 samples has a weight; check Task.weight and the labels"
    ):
        next(data.windows(0, 1))


# Hugging Face data sets


def test_a_hugging_face_data_set_is_map_style() -> None:
    rows = Dataset.from_dict({"x": [float(i) for i in range(11)], "y": list(range(11))})
    for workers in (0, 2):
        data = IndexedData(rows, layout(1, 2, 2), seed=0, workers=workers)
        batches = [
            micro.batch for window in data.windows(0, 3) for micro in window.micros if micro.weight
        ]
        order = epoch_order(11, 0, 0)
        assert [int(y) for batch in batches for y in batch["y"]] == [
            *order[2:4],
            *order[6:8],
            *order[9:11],
        ]
        assert all(torch.equal(batch["x"].long(), batch["y"]) for batch in batches)


@pytest.mark.parametrize("weight_of", [None, heavy])
def test_of_ranks_that_share_their_batches_one_has_their_weight(weight_of: Any) -> None:
    shares = [replace(layout(micro=4), counts=counts) for counts in (True, False)]
    both = [
        [*IndexedData(Numbers(9), one, seed=1, weight_of=weight_of).windows(0, 3)] for one in shares
    ]
    for counted, other in zip(*both, strict=True):
        assert [micro.weight for micro in counted.micros] == [
            micro.weight for micro in other.micros
        ]
        assert all(
            map(torch.equal, *([micro.batch for micro in one.micros] for one in (counted, other)))
        )
        assert counted.weight == sum(micro.weight for micro in counted.micros) and other.weight == 0
        assert not any(micro.counts for micro in other.micros)
