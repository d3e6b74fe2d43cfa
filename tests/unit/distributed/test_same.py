"""Facts that are compared between ranks, and how the first difference is described."""

from __future__ import annotations

from trainer.distributed.same import same_on_all_ranks


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
    assert answered({"w": "c"}) == "rank 3: w is c, rank 1: w is b"


def test_a_fact_that_is_missing_or_in_another_place_is_a_difference() -> None:
    def answered(*of_ranks: dict[str, str]) -> str:
        answers = iter([[(None, 1), (None, 2)], of_ranks])
        return same_on_all_ranks(of_ranks[0], lambda value: next(answers))

    one, two = {"a": "1"}, {"a": "1", "b": "2"}
    assert answered(one, two) == "rank 1: b is 2, rank 0: the rest is missing"
    assert answered(two, one) == "rank 1: the rest is missing, rank 0: b is 2"
    assert answered(two, {"b": "2", "a": "1"}) == "rank 1: b is 2, rank 0: a is 1"
