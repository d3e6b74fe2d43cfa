"""The order of an epoch: that of large data sets is as good as a permutation in memory."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.data import order
from trainer.data.feistel import FeistelOrder
from trainer.data.order import epoch_order

BILLION = 1_000_000_007
seeds = st.tuples(st.integers(0, 2**40), st.integers(0, 1000))


def test_the_example_of_the_module_is_true() -> None:
    found = doctest.testmod(order)
    assert found.attempted > 0
    assert found.failed == 0


@given(st.integers(1, 300), seeds)
def test_every_sample_of_a_small_set_comes_once(size: int, seed: tuple[int, int]) -> None:
    assert sorted(FeistelOrder(size, *seed)[0:size]) == list(range(size))


@given(st.integers(1, 300), seeds, st.data())
def test_any_slice_is_that_of_the_whole(
    size: int, seed: tuple[int, int], data: st.DataObject
) -> None:
    whole = FeistelOrder(size, *seed)[0:size]
    feistel = FeistelOrder(size, *seed)
    for _ in range(5):
        start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
        assert np.array_equal(feistel[start:stop], whole[start:stop])


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
