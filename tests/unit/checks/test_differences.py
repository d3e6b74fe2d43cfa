"""Facts that are compared between ranks, and how the first difference is described."""

from __future__ import annotations

from typing import Any

from fake_run import TwoRanks

from trainer.checks.differences import Facts, described, differences, flat


def compared_with(facts: Facts, others: Facts) -> tuple[list[str], list[Facts]]:
    """Compare facts of rank 0 with those of rank 1."""
    ranks: Any = TwoRanks(lambda value: 0 if isinstance(value, int) else others)
    return differences(facts, ranks)


def test_one_number_is_exchanged_where_nothing_differs() -> None:
    ranks: Any = TwoRanks()
    assert differences({"lr": "0.1"}, ranks) == ([], [])
    assert ranks.sent == 1


def test_differences_come_in_order_with_the_facts_of_all_ranks() -> None:
    mine, theirs = {"seed": "0", "lr": "0.1"}, {"lr": "0.1", "seed": "1", "more": "2"}
    different, of_ranks = compared_with(mine, theirs)
    assert different == ["seed", "more"]
    assert of_ranks == [mine, theirs]


def test_a_difference_names_rank_and_both_values() -> None:
    of_ranks = [{"seed": "0"}, {"seed": "0"}, {"seed": "1", "more": "2"}]
    assert described("seed", of_ranks) == "rank 2: seed is 1, rank 0: 0"
    assert described("more", of_ranks) == "rank 2: more is 2, rank 0: missing"


def test_equal_facts_in_another_order_are_named() -> None:
    mine, theirs = (
        {"seed": "0", "lr": "0.1", "warmup": "5"},
        {"seed": "0", "warmup": "5", "lr": "0.1"},
    )
    different, of_ranks = compared_with(mine, theirs)
    assert different == ["lr"]
    text = described("lr", of_ranks)
    assert text == "rank 1: in another order: warmup stands where rank 0 has lr"


def test_nested_values_become_facts_with_dots() -> None:
    values = {"lr": 0.1, "name": "a b", "plan": {"stage": 2, "empty": {}, "none": None}}
    assert flat("x.", values) == {
        "x.lr": "0.1",
        "x.name": "a b",
        "x.plan.stage": "2",
        "x.plan.empty": "{}",
        "x.plan.none": "null",
    }
