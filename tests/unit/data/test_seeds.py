"""Seeds and generators follow from their numbers alone."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.data.seeds import generator_of, seed_of

numbers = st.lists(st.integers(0, 2**62), min_size=1, max_size=4)


@given(numbers)
def test_a_seed_fits_numpy_and_is_the_same_again(entropy: list[int]) -> None:
    assert 0 <= seed_of(*entropy) < 2**32
    assert seed_of(*entropy) == seed_of(*entropy)


def test_seeds_are_what_checkpointed_runs_drew_from() -> None:
    assert [seed_of(0), seed_of(1, 2), seed_of(2, 1)] == [2968811710, 1596810411, 307626447]
    assert generator_of(3, 4).initial_seed() == 16284573993945758692


def test_other_numbers_and_another_order_of_them_are_other_seeds() -> None:
    found = {seed_of(a, b) for a in range(30) for b in range(30)}
    assert len(found) == 900


def test_a_generator_draws_the_same_again_and_leaves_the_global_one() -> None:
    before = torch.get_rng_state()
    first = torch.rand(3, generator=generator_of(5, 6))
    assert torch.equal(first, torch.rand(3, generator=generator_of(5, 6)))
    assert not torch.equal(first, torch.rand(3, generator=generator_of(6, 5)))
    assert torch.equal(torch.get_rng_state(), before)
