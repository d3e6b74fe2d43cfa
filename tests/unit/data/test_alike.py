"""Check that all ranks read the same stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_run import TwoRanks
from layouts import layout

from trainer.data.alike import check_same_beginning
from trainer.data.evaluation import EvaluationBatches
from trainer.data.stream import StreamData
from trainer.errors import DataError


class Stream:
    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return map(torch.tensor, self.items)


def windows_of(items: list[int], workers: int) -> Any:
    return StreamData(Stream(items), layout(0, 2, 2), seed=0, workers=workers).windows(0, 3)


@pytest.mark.parametrize("workers", [0, 1])
def test_only_the_first_window_of_a_stream_has_a_digest(workers: int) -> None:
    first, second, third = (window.digest for window in windows_of([*range(12)], workers))
    assert first != 0
    assert (second, third) == (0, 0)


def test_the_first_rank_that_differs_is_named() -> None:
    check_same_beginning(4, "Data.train", lambda value: [value] * 3)
    ranks = TwoRanks(lambda value: 0 if isinstance(value, int) else dict.fromkeys(value, "5"))
    with pytest.raises(DataError, match=r"^rank 1: the beginning of Data\.train, .* is 5, rank 0"):
        check_same_beginning(4, "Data.train", ranks.gather)


class OwnPart:
    """A stream that yields every second number, from that of its rank on."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from map(torch.tensor, range(self.rank, 8, 2))


def test_an_evaluation_stream_that_divides_itself_is_refused() -> None:
    gathered: list[int] = []

    def gather(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [dict.fromkeys(value, "of rank 0"), value]
        gathered.append(value)
        return gathered

    of_ranks = []
    for rank in range(2):
        part = OwnPart(rank)
        of_ranks.append(EvaluationBatches(part, layout(), batch_size=2, gather=gather))
    assert len([*of_ranks[0]]) == 2
    with pytest.raises(DataError, match=r"^rank 1: the beginning of Data\.evaluation, .* rank 0: "):
        next(iter(of_ranks[1]))
