"""The order of a mixture: shares, passes, phases, and what a resume may change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

import trainer
from trainer import CheckpointError, DataError

FIRST = {"code": 0, "web": 10_000, "maths": 20_000}  # the value of the first row of each source
SIZES = {"code": 5000, "web": 300, "maths": 12_000}
NUMBERS = np.arange(len(FIRST))
SEED = 3


def mixture(**given: tuple[Any, ...]) -> Any:
    rows = {name: range(FIRST[name], FIRST[name] + SIZES[name]) for name in given}
    return trainer.mixed({name: (rows[name], *of_source) for name, of_source in given.items()})


def values(mixed: Any, begin: int, end: int) -> np.ndarray:
    order = mixed.own_order.of_epoch(SEED, 0)
    return np.array([mixed[index] for index in order(np.arange(begin, end))])


def sources(found: np.ndarray) -> np.ndarray:
    return np.searchsorted(list(FIRST.values()), found, side="right") - 1


def counts(found: np.ndarray) -> list[int]:
    return np.bincount(sources(found), minlength=len(FIRST)).tolist()


def test_every_aligned_thousand_has_the_shares_and_every_pass_each_row_once() -> None:
    mixed = mixture(code=(0.7,), web=(0.2,), maths=(0.1,))
    found = values(mixed, 0, 30_000)
    for begin in range(0, len(found), 1000):
        assert counts(found[begin : begin + 1000]) == [700, 200, 100]

    for number, size in enumerate(SIZES.values()):
        rows = found[sources(found) == number]
        passes = [rows[begin : begin + size] for begin in range(0, len(rows) - size + 1, size)]
        assert all(len(set(one.tolist())) == size for one in passes)
        if len(passes) > 1:
            assert not np.array_equal(passes[0], passes[1]), "another order in each pass"
    indices = mixed.own_order.of_epoch(SEED, 0)(np.arange(30_000))
    assert len(set(indices.tolist())) == 30_000, "a later pass is augmented in another way"


@given(
    st.lists(st.floats(0.001, 1), min_size=1, max_size=12),
    st.integers(0, 3000),
    st.integers(1, 1000),
)
def test_each_beginning_and_each_window_have_the_shares(
    weights: list[float], begin: int, count: int
) -> None:
    mixed = trainer.mixed({str(n): (range(50), weight) for n, weight in enumerate(weights)})
    shares = np.array(weights) / sum(weights)
    # A sample for up to four sources, and half a sample more each time that sources are doubled.
    bound = max(1.0, 0.5 * np.ceil(np.log2(len(weights)))) + 1e-6 * (begin + count)
    before, behind = mixed.counts(begin), mixed.counts(begin + count)
    assert before.sum() == begin and behind.sum() == begin + count
    assert np.abs(before - shares * begin).max() <= bound
    assert np.abs(behind - before - shares * count).max() <= 2 * bound


def test_any_slice_is_that_of_the_whole_order() -> None:
    mixed = mixture(code=(0.7, 1), web=(0.2, 2), maths=(0.1,))
    whole = values(mixed, 0, 20_000)
    drawn = np.random.default_rng(0).integers(0, 20_000, (60, 2))
    for begin, end in np.sort(drawn):
        assert np.array_equal(values(mixed, begin, end), whole[begin:end])
        before = mixed.own_order.counts(int(begin))
        assert before.tolist() == counts(whole[:begin])


def test_a_source_ends_behind_its_passes_and_the_others_get_its_share() -> None:
    mixed = mixture(code=(0.7, 1), web=(0.2, 2), maths=(0.1,))
    found = values(mixed, 0, 40_000)
    assert counts(found) == [5000, 600, 34_400]
    [web_ended] = np.flatnonzero(sources(found) == 1)[-1:]
    assert counts(found[web_ended + 1 : web_ended + 1001]) == [875, 0, 125]

    mixed = mixture(code=(0.7, 1), web=(0.2, 2), maths=(0.1, 1))
    places = 5000 + 600 + 12_000
    assert mixed.own_order.places == places
    assert counts(values(mixed, 0, places)) == [5000, 600, 12_000]
    again = mixed.own_order.of_epoch(SEED, 1)(np.arange(places))
    assert mixed.own_order.counts(2 * places).tolist() == [10_000, 1200, 24_000]
    assert not np.array_equal(again, mixed.own_order.of_epoch(SEED, 0)(np.arange(places)))


def test_a_change_of_weights_begins_a_phase_and_keeps_what_came_before() -> None:
    before = mixture(code=(0.7, 1), web=(0.2, 2), maths=(0.1,))
    state = before.own_order.state()
    after = mixture(code=(0.2, 1), web=(0.2, 2), maths=(0.6,))
    assert before.own_order.text != after.own_order.text, "a resume asks for permission"

    after.own_order.restore(state, 1500)
    found = values(after, 0, 20_000)
    assert np.array_equal(found[:1500], values(before, 0, 1500))
    assert counts(found[1500:2500]) == [200, 200, 600]
    assert len(set(after.own_order.of_epoch(SEED, 0)(np.arange(20_000)).tolist())) == 20_000

    again = mixture(code=(0.2, 1), web=(0.2, 2), maths=(0.6,))
    again.own_order.restore(after.own_order.state(), 9000)
    assert again.own_order.weights == after.own_order.weights

    other = mixture(code=(0.7, 2), web=(0.2, 2), maths=(0.1,))
    with pytest.raises(CheckpointError, match="only weights may change"):
        other.own_order.restore(state, 1500)


def test_the_log_has_share_and_passes_and_the_banner_the_planned_passes() -> None:
    mixed = mixture(code=(0.7,), web=(0.2,), maths=(0.1,))
    logged = mixed.own_order.logged(1000, 3000)
    assert logged["mix/web/share"] == 0.2
    assert logged["mix/web/epoch"] == 2.0
    assert logged["mix/code/epoch"] == pytest.approx(2100 / 5000)
    [line] = mixed.own_order.notices(30_000)
    assert "{'code': 4.2, 'web': 20.0, 'maths': 0.25}" in line


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"a": (iter([1]), 1.0)}, "a cannot be mixed; give map-style data sets"),
        ({"a": ([], 1.0)}, "mixed: a is empty"),
        ({"a": ([1], 1.0), "b": ([2], 1e-7)}, "weights .*1e-07.* is below a millionth"),
    ],
)
def test_sources_that_cannot_be_mixed_are_refused(given: dict[str, Any], rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        trainer.mixed(given)


def test_data_sets_of_the_library_datasets_are_mixed() -> None:
    rows = [Dataset.from_dict({"id": [*range(first, first + 10)]}) for first in (0, 10)]
    mixed = trainer.mixed({"a": (rows[0], 0.5), "b": (rows[1], 0.5)})
    assert [row["id"] for row in mixed] == [*range(20)]
    assert mixed.version == ""
