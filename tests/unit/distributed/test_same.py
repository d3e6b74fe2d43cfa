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
    assert answered({"w": "c"}) == "rank 3: w is c, rank 1: b"
