"""Facts that are compared between ranks, and how the first difference is described."""

from __future__ import annotations

from typing import Any

import pytest
from fake_run import TwoRanks

from trainer.distributed.same import same_on_all_ranks


def compared_with(facts: Any, others: Any) -> str:
    """Compare facts of rank 0 with those of rank 1."""
    ranks = TwoRanks(lambda value: (None, 0) if isinstance(value, tuple) else others)
    return same_on_all_ranks(facts, ranks.gather)


FACTS = {"seed": "0", "lr": "0.1", "warmup": "5"}


@pytest.mark.parametrize(
    ("others", "told"),
    [
        ({**FACTS, "seed": "1", "lr": "1"}, "rank 1: seed is 1, rank 0: 0"),
        ({**FACTS, "more": "2"}, "rank 1: more is 2, rank 0: missing"),
        ({"seed": "0", "lr": "0.1"}, "rank 1: warmup is missing, rank 0: 5"),
        (
            {"seed": "0", "warmup": "5", "lr": "0.1"},
            "rank 1: in another order: warmup stands where rank 0 has lr",
        ),
    ],
)
def test_the_first_difference_names_rank_and_both_values(others: Any, told: str) -> None:
    assert compared_with(FACTS, others) == told


def test_only_ranks_with_the_same_part_are_compared() -> None:
    """Of two groups each of which has the model, divided over two ranks."""

    def answered(changed: dict[str, str]) -> str:
        of_ranks = [{"w": "a"}, {"w": "b"}, {"w": "a"}, {"w": "b", **changed}]
        answers = iter(
            [
                [(number % 2, own["w"]) for number, own in enumerate(of_ranks)],
                of_ranks,
            ]
        )
        return same_on_all_ranks(of_ranks[0], lambda value: next(answers), part=0)

    assert answered({}) == ""
    assert answered({"w": "c"}) == "rank 3: w is c, rank 1: b"
