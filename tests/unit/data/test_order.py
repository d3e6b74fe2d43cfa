"""The order of an epoch: that of large data sets is as good as a permutation in memory."""

from __future__ import annotations

import doctest

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.data import order
from trainer.data.feistel import feistel_order

BILLION = 1_000_000_007
seeds = st.tuples(st.integers(0, 2**40), st.integers(0, 1000))


def test_the_example_of_the_module_is_true() -> None:
    found = doctest.testmod(order)
    assert found.attempted > 0
    assert found.failed == 0


@given(st.integers(1, 300), seeds)
def test_every_sample_of_a_small_set_comes_once(size: int, seed: tuple[int, int]) -> None:
    assert sorted(feistel_order(size, *seed)(np.arange(size))) == list(range(size))


@given(st.integers(1, 300), seeds, st.data())
def test_any_slice_is_that_of_the_whole(
    size: int, seed: tuple[int, int], data: st.DataObject
) -> None:
    whole = feistel_order(size, *seed)(np.arange(size))
    feistel = feistel_order(size, *seed)
    for _ in range(5):
        start, stop = sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size))))
        assert np.array_equal(feistel(np.arange(start, stop)), whole[start:stop])


@given(st.integers(0, 2**62 - 1000), seeds)
def test_no_two_places_of_a_huge_set_hold_the_same(start: int, seed: tuple[int, int]) -> None:
    found = feistel_order(2**62, *seed)(np.arange(start, start + 1000))
    assert len(set(found.tolist())) == 1000 and found.min() >= 0 and found.max() < 2**62


def test_the_order_is_what_it_was() -> None:
    """Runs go on in the order that they began with: another one wants another name."""
    assert feistel_order(BILLION, 17, 3)(np.arange(4)).tolist() == [
        103282320,
        53144731,
        388294713,
        110552667,
    ]
    assert feistel_order(BILLION, 17, 3)(np.arange(BILLION - 4, BILLION)).tolist() == [
        383174973,
        607339315,
        33423874,
        608705560,
    ]
    assert feistel_order(10, 0, 0)(np.arange(10)).tolist() == [9, 1, 0, 7, 2, 3, 6, 5, 4, 8]
