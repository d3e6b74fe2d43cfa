"""The order of large data sets: computed where it is read, and as good as a permutation in memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layouts import Numbers, consumed, layout

from trainer.data.evaluation import EvaluationBatches
from trainer.data.indexed import IndexedData
from trainer.data.order import PERMUTED_UP_TO, FeistelOrder, epoch_order, order_for
from trainer.errors import CheckpointError

BILLION = 1_000_000_007
seeds = st.tuples(st.integers(0, 2**40), st.integers(0, 1000))


@given(st.integers(1, 300), seeds)
def test_every_sample_of_a_small_set_comes_once(size: int, seed: tuple[int, int]) -> None:
    assert sorted(FeistelOrder(size, *seed)[0:size]) == list(range(size))


@pytest.mark.parametrize("size", [2**10 - 1, 2**10, 2**10 + 1, 10_007, 2**16 + 1])
def test_every_sample_comes_once(size: int) -> None:
    assert np.array_equal(np.sort(FeistelOrder(size, 3, 1)[0:size]), np.arange(size))


@given(st.integers(1, 300), seeds, st.data())
def test_any_slice_is_that_of_the_whole(
    size: int, seed: tuple[int, int], data: st.DataObject
) -> None:
    whole, order = FeistelOrder(size, *seed)[0:size], FeistelOrder(size, *seed)
    order.ahead = data.draw(st.integers(1, 20))
    for _ in range(5):
        start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
        assert np.array_equal(order[start:stop], whole[start:stop])


@given(st.integers(0, 2**62 - 1000), seeds)
def test_no_two_places_of_a_huge_set_hold_the_same(start: int, seed: tuple[int, int]) -> None:
    found = FeistelOrder(2**62, *seed)[start : start + 1000]
    assert len(set(found.tolist())) == 1000 and found.min() >= 0 and found.max() < 2**62


def test_the_order_is_what_it_was() -> None:
    """Runs go on in the order that they began with: another one wants another name."""
    assert FeistelOrder(BILLION, 17, 3)[0:4].tolist() == [103282320, 53144731, 388294713, 110552667]
    assert FeistelOrder(BILLION, 17, 3)[BILLION - 4 : BILLION].tolist() == [
        383174973,
        607339315,
        33423874,
        608705560,
    ]
    assert FeistelOrder(10, 0, 0)[0:10].tolist() == [9, 1, 0, 7, 2, 3, 6, 5, 4, 8]


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = [FeistelOrder(BILLION, seed, epoch)[0:1000] for seed in range(4) for epoch in range(4)]
    same = [int((one == other).sum()) for at, one in enumerate(orders) for other in orders[:at]]
    assert sum(same) == 0, "of 120,000 pairs 0.00012 are expected to be equal"


def statistics(order: np.ndarray[Any, Any]) -> dict[str, float]:
    """Numbers that are about standard normal for a random permutation."""
    size, cells = len(order), 64
    table = np.histogram2d(np.arange(size), order, bins=cells)[0]  # how places and samples meet
    freedom = (cells - 1) ** 2
    chi = ((table - size / cells**2) ** 2).sum() / (size / cells**2)
    steps = np.histogram((np.diff(order) % size), bins=cells, range=(0, size))[
        0
    ]  # from one sample to the next

    def correlation(lag: int) -> float:
        return float(np.corrcoef(order[:-lag], order[lag:])[0, 1] * np.sqrt(size))

    return {
        "chi-square": (chi - freedom) / np.sqrt(2 * freedom),
        "steps": (((steps - size / cells) ** 2).sum() / (size / cells) - cells + 1)
        / np.sqrt(2 * (cells - 1)),
        "fixed": float((order == np.arange(size)).sum() - 1),
        "places": float(np.corrcoef(np.arange(size), order)[0, 1] * np.sqrt(size)),
        "neighbours": correlation(1),
        "a base further": correlation(int(size**0.5)),
    }


@pytest.mark.parametrize("size", [2**16, 40_001])
def test_it_is_as_uniform_as_numpys_permutation(size: int) -> None:
    found = {
        name: np.array([list(statistics(make(seed)).values()) for seed in range(20)])
        for name, make in {
            "ours": lambda seed: FeistelOrder(size, seed, 0)[0:size],
            "numpy's": lambda seed: epoch_order(size, seed, 0),
        }.items()
    }
    for name, values in found.items():
        assert np.abs(values).max() < 6, (
            name
        )  # chi-squares and counts have longer tails than a normal distribution
        assert np.abs(values.mean(axis=0)).max() < 4 / np.sqrt(20), name
        assert (values.std(axis=0) < 1.8).all(), name


@pytest.mark.parametrize("start", [0, 5 * 24, BILLION - 30])
def test_layouts_of_one_global_batch_take_the_same_steps_of_a_billion(start: int) -> None:
    expected = consumed(IndexedData(Numbers(BILLION), layout(micro=24), seed=5), start, 4)
    for world, micro, accumulation in ((2, 3, 4), (3, 8, 1), (4, 1, 6)):
        ranks = [
            IndexedData(Numbers(BILLION), layout(r, world, micro, accumulation), seed=5)
            for r in range(world)
        ]
        steps = [consumed(rank, start, 4) for rank in ranks]
        for at in range(4):
            assert sorted(i for rank in steps for i in rank[at]) == sorted(expected[at])
        position = next(iter(ranks[0].windows(start, 1))).end
        assert [consumed(rank, position, 3) for rank in ranks] == [rank[1:] for rank in steps]


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
    assert order_for(PERMUTED_UP_TO) == "permutation" and order_for(PERMUTED_UP_TO + 1) == "feistel"
    at_the_limit = IndexedData(Numbers(PERMUTED_UP_TO), layout(micro=8), seed=2)
    assert consumed(at_the_limit, 0, 1) == [epoch_order(PERMUTED_UP_TO, 2, 0)[:8].tolist()]
    above = IndexedData(Numbers(PERMUTED_UP_TO + 1), layout(micro=8), seed=2)
    assert consumed(above, 0, 1) == [FeistelOrder(PERMUTED_UP_TO + 1, 2, 0)[0:8].tolist()]


def test_a_run_keeps_the_order_that_it_began_with() -> None:
    above = PERMUTED_UP_TO + 1
    data = IndexedData(Numbers(above), layout(micro=8), seed=2)
    assert data.state() == {"samples": 0, "order": "feistel"}
    data.restore({"samples": 16})  # a checkpoint from before there was another order
    assert consumed(data, 16, 1) == [epoch_order(above, 2, 0)[16:24].tolist()] and data.state() == {
        "samples": 24
    }
    data.restore({"samples": 16, "order": "feistel"})
    assert consumed(data, 16, 1) == [FeistelOrder(above, 2, 0)[16:24].tolist()]
    for name in ("riffle", ["feistel"], None, 3):
        with pytest.raises(
            CheckpointError, match=r"is no order of the data; known: permutation, feistel"
        ):
            data.restore({"samples": 16, "order": name})
