"""Ranks that have other data."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_run import TwoRanks
from layouts import layout

from trainer.checks.same_data import SameData
from trainer.data.stream import StreamData
from trainer.errors import DataError


class Stream:
    def __init__(self, items: list[int]) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return map(torch.tensor, self.items)


def windows_of(items: list[int], workers: int) -> Any:
    return StreamData(Stream(items), layout(0, 2, 2), seed=0, workers=workers).windows(0, 3)


def run_with(gather: Callable[[int], list[int]]) -> Any:
    return SimpleNamespace(agreement=SimpleNamespace(gather=gather))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_is_the_same_on_every_rank_is_compared_once(workers: int) -> None:
    gathered: list[int] = []

    def gather(number: int) -> list[int]:
        gathered.append(number)
        return [number, number]

    check, run = SameData(), run_with(gather)
    windows = [*windows_of([*range(12)], workers)]
    for window in windows:
        check.on_window(run, window)
    assert len(gathered) == 1, "the ranks compare once, before the first step"
    assert [bool(window.digest) for window in windows] == [True, False, False]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_divides_itself_is_refused_before_the_first_step(workers: int) -> None:
    [of_rank_0, *_] = windows_of([*range(0, 12, 2)], workers)
    ranks = TwoRanks(
        lambda value: (None, 0) if isinstance(value, tuple) else dict.fromkeys(value, "5")
    )
    run = run_with(ranks.gather)
    with pytest.raises(
        DataError, match=r"^rank 1: the beginning of Data\.train, .* is 5, rank 0: "
    ):
        SameData().on_window(run, of_rank_0)
