"""Votes on a clock of the test's own: how many there are, how late a request is, what they compare."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trainer.distributed import agreement
from trainer.distributed.agreement import Agreement


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(agreement, "time", made)
    return made


class Ranks:
    """Several ranks in one process, which pass each boundary one after the other."""

    def __init__(self, count: int) -> None:
        self.votes = [Agreement() for _ in range(count)]
        for one in self.votes:
            one.begin_max = self.begin_max  # type: ignore[method-assign]
        self.begun: list[Tensor] = []
        self.count = 0

    def begin_max(self, *numbers: int) -> Callable[[], list[int]]:
        values = torch.tensor(numbers)
        self.begun.append(values)
        if len(self.begun) == len(self.votes):
            largest = torch.stack(self.begun).amax(0)
            for one in self.begun:
                one.copy_(largest)
            self.begun, self.count = [], self.count + 1
        return values.tolist

    def pass_boundary(self, name: str = "step", *fingerprints: int) -> set[int]:
        given = fingerprints or (0,) * len(self.votes)
        return {one.pass_boundary(name, mine) for one, mine in zip(self.votes, given, strict=True)}


@pytest.mark.parametrize("seconds", [0.0003, 0.01, 0.1, 0.2, 1.0])
@pytest.mark.parametrize("at", [1, 7, 500, 2003])
def test_a_request_of_one_rank_is_known_to_all_at_one_step_half_a_second_later(
    clock: Clock, seconds: float, at: int
) -> None:
    ranks = Ranks(3)
    for step in range(1, 10_000):
        clock.now += seconds
        if step == at:
            asked, ranks.votes[1]._request = clock.now, 15
        if (answers := ranks.pass_boundary()) != {0}:
            break
    assert answers == {15}
    assert clock.now - asked <= max(0.5, 2 * seconds) + 1e-9


def test_steps_that_become_slower_are_voted_on_more_often_after_one_interval(clock: Clock) -> None:
    ranks = Ranks(2)
    for seconds in [0.005] * 1000 + [1.0] * 100:
        clock.now += seconds
        ranks.pass_boundary()
    before = ranks.count
    for _ in range(10):
        clock.now += 1.0
        ranks.pass_boundary()
    assert ranks.count - before == 10


def test_an_evaluation_has_a_pace_of_its_own(clock: Clock) -> None:
    ranks = Ranks(2)
    for _ in range(1000):
        clock.now += 0.001
        ranks.pass_boundary()
    ranks.votes[0]._request = 10
    begun = clock.now
    while ranks.pass_boundary("batch") == {0}:
        clock.now += 0.2
    assert clock.now - begun <= 0.5
    assert ranks.pass_boundary() == {10}, "the steps know as well"
