"""Seeds and generators follow from their numbers alone."""

from __future__ import annotations

from hypothesis import strategies as st

from trainer.data.seeds import generator_of, seed_of

numbers = st.lists(st.integers(0, 2**62), min_size=1, max_size=4)


def test_seeds_are_what_checkpointed_runs_drew_from() -> None:
    assert [seed_of(0), seed_of(1, 2), seed_of(2, 1)] == [2968811710, 1596810411, 307626447]
    assert generator_of(3, 4).initial_seed() == 16284573993945758692


def test_other_numbers_and_another_order_of_them_are_other_seeds() -> None:
    found = {seed_of(a, b) for a in range(30) for b in range(30)}
    assert len(found) == 900
