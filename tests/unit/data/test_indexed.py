"""Steps are a function of (seed, position, layout), and every sample comes once an epoch."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import Numbers, consumed, heavy, layout, layouts
from torch import Tensor

from trainer.data.evaluation import EvaluationBatches
from trainer.data.feistel import feistel_order
from trainer.data.indexed import IndexedData
from trainer.data.order import PERMUTED_UP_TO, epoch_order
from trainer.data.stream import StreamData
from trainer.errors import DataError

BILLION = 1_000_000_007


def test_a_set_smaller_than_a_global_batch_is_refused_with_drop_last() -> None:
    with pytest.raises(DataError, match=r"drop_last: 3 samples do not fill a global batch of 4"):
        IndexedData(Numbers(3), layout(), seed=0, drop_last=True)


def held(items: Sequence[dict[str, Any]]) -> Tensor:
    """A collate that takes its items apart."""
    return torch.stack([item.pop("value") for item in items if item["lock"]])


def grown(items: Sequence[dict[str, list[int]]]) -> Tensor:
    """A collate that marks the end of its items, in place."""
    for item in items:
        item["ids"].append(0)
    return torch.tensor([len(item["ids"]) for item in items])


def test_a_padding_batch_does_not_grow_by_collates_that_change_their_items() -> None:
    stream = ({"ids": ids} for _ in range(9) for ids in ([1, 2], [1, 2, 3]))
    data = StreamData(
        stream, layout(1, 2, 1), seed=0, collate=grown, weight_of=lambda lengths: int(lengths) == 3
    )
    padding = [
        micro.batch for window in data.windows(0, 9) for micro in window.micros if not micro.weight
    ]
    assert len(padding) == 9 and [*map(int, padding)] == [3] * 9


@pytest.mark.parametrize("stream", [False, True])
def test_a_padding_batch_takes_items_that_cannot_be_copied_and_collates_that_take_them_apart(
    stream: bool,
) -> None:
    items = [
        {"value": torch.ones((), requires_grad=True) * number, "lock": Lock()}
        for number in range(9)
    ]
    made = StreamData(iter(items), layout(0, 2, 2), seed=0, collate=held) if stream else None
    data = made or IndexedData(items, layout(0, 2, 2), seed=0, collate=held)
    first, second, last = data.windows(0, 3)
    assert (last.samples, last.weight, [micro.weight for micro in last.micros]) == (1, 0.0, [0.0])
    assert len(last.micros[0].batch) == 2
    assert first.weight == second.weight == 2.0


def test_data_without_any_weight_is_padding_which_the_step_refuses() -> None:
    data = IndexedData(Numbers(5), layout(), seed=0, weight_of=heavy)
    assert next(data.windows(0, 1)).weight == 0


def numbers(size: int, *shape: int, **more: Any) -> IndexedData:
    """Return data of so many numbers on a layout."""
    return IndexedData(Numbers(size), layout(*shape), **more)


splits = st.tuples(st.integers(1, 4), st.sampled_from((1, 2, 3)), st.sampled_from((1, 2, 4)))


@settings(max_examples=50)
@given(st.integers(1, 70), splits, st.booleans(), st.integers(0, 3))
def test_layouts_of_one_global_batch_take_the_same_steps(
    size: int, split: tuple[int, int, int], drop_last: bool, seed: int
) -> None:
    """Every way to cut a global batch: the same sets at the same steps, over two epochs and their
    ragged ends.
    """
    world, micro, accumulation = split
    batch = world * micro * accumulation
    size += batch * drop_last  # at least one whole step
    more: dict[str, Any] = {"seed": seed, "drop_last": drop_last}
    alone = numbers(size, 0, 1, batch, **more)
    count = 2 * alone.steps_per_epoch
    expected = [sorted(step) for step in consumed(alone, 0, count)]
    for shape in set(itertools.permutations(split)):
        ranks = [
            consumed(numbers(size, rank, *shape, **more), 0, count) for rank in range(shape[0])
        ]
        assert [
            sorted(i for rank in ranks for i in rank[step]) for step in range(count)
        ] == expected
    for epoch in (expected[: count // 2], expected[count // 2 :]):
        ids = [i for step in epoch for i in step]
        assert len(set(ids)) == len(ids) == (len(epoch) * batch if drop_last else size)


@settings(max_examples=50)
@given(layouts, st.integers(0, 11), st.booleans())
def test_any_start_gives_the_rest_on_every_rank(
    shape: tuple[int, int, int, int], start: int, drop_last: bool
) -> None:
    """Also on another layout of the same global batch: the position means the same there."""
    size, world, micro, accumulation = shape
    batch = world * micro * accumulation
    size += batch * drop_last
    more: dict[str, Any] = {"seed": 2, "drop_last": drop_last}
    first = numbers(size, 0, *shape[1:], **more)
    ends = [0, *(window.end for window in first.windows(0, 11))]
    for rank in range(world):
        data = numbers(size, rank, *shape[1:], **more)
        assert consumed(data, ends[start], 12 - start) == consumed(data, 0, 12)[start:]
    alone = numbers(size, 0, 1, batch, **more)
    assert [window.end for window in alone.windows(ends[start], 11 - start)] == ends[start + 1 :]


# Data sets too large for a permutation in memory


def test_a_billion_samples_cost_a_rank_no_memory() -> None:
    """Order, shares, position and evaluation; in the last epoch of three, so that another one
    begins.
    """
    tracemalloc.start()
    try:
        data = IndexedData(Numbers(BILLION), layout(1, 8, 32, 2), seed=0)
        assert data.steps_left(0, 3) == 3 * data.steps_per_epoch
        windows = [*data.windows(3 * BILLION - 1000, 4)]
        assert [window.samples for window in windows] == [512, 488, 512, 512]
        evaluation = EvaluationBatches(Numbers(BILLION), layout(1, 8), batch_size=32)
        batch, examples = next(iter(evaluation))
        assert (batch[0], examples) == (32, 32)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20, "128 KiB are the indices that are computed at once"


def test_sets_up_to_the_limit_keep_their_permutation() -> None:
    at_the_limit = IndexedData(Numbers(PERMUTED_UP_TO), layout(micro=8), seed=2)
    assert consumed(at_the_limit, 0, 1) == [epoch_order(PERMUTED_UP_TO, 2, 0)[:8].tolist()]
    above = IndexedData(Numbers(PERMUTED_UP_TO + 1), layout(micro=8), seed=2)
    assert consumed(above, 0, 1) == [feistel_order(PERMUTED_UP_TO + 1, 2, 0)(np.arange(8)).tolist()]


def test_a_run_keeps_the_order_that_it_began_with() -> None:
    above = PERMUTED_UP_TO + 1
    data = IndexedData(Numbers(above), layout(micro=8), seed=2)
    assert data.state() == {"samples": 0, "order": "feistel"}
    data.restore({"samples": 16, "order": "permutation"})
    assert consumed(data, 16, 1) == [epoch_order(above, 2, 0)[16:24].tolist()]
    assert data.state() == {"samples": 24, "order": "permutation"}
    data.restore({"samples": 16, "order": "feistel"})
    assert consumed(data, 16, 1) == [feistel_order(above, 2, 0)(np.arange(16, 24)).tolist()]
    for name in ("riffle", ["feistel"], None, 3):
        with pytest.raises(AssertionError, match="no order of the data"):
            data.restore({"samples": 16, "order": name})


# Hugging Face data sets
