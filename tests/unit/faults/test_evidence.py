"""What rows and observers together say of a rank."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from trainer.faults import evidence as module
from trainer.faults.board import Board, Row, Who
from trainer.faults.evidence import Evidence
from trainer.faults.identity import Identity, own_machine
from trainer.faults.observation import Address, Report

ROW = Row(count=3, step=5, phase="", unmoved=4.0, doing="", begun={"0": ("world", 4)})
ENDED = Identity(own_machine(), 1 << 30, 7)  # no process has this number


def evidence_of(rows: dict[int, Row], identities: dict[int, Identity]) -> Evidence:
    """Return the evidence of rank 0 of three, which has listened for a minute."""
    board = Board("1", rank=0, world_size=3, answer_seconds=2.0)
    board.rows = rows
    board.who = {}
    for rank, identity in identities.items():
        board.who[rank] = Who(host="node1", identity=identity, observer=Address("", rank, ""))
    now = time.monotonic()
    board.heard = dict.fromkeys(rows, now)
    made = Evidence(board, rank=0, world_size=3)
    made.began = now - 60.0
    return made


def test_a_rank_that_ended_before_it_left_the_block() -> None:
    own = Identity.own()
    assert evidence_of({1: ROW}, {0: own, 1: own}).ended_rank() is None
    assert evidence_of({1: ROW}, {0: own, 1: ENDED}).ended_rank() == 1
    assert evidence_of({}, {0: own, 1: ENDED}).ended_rank() == 1, "before it wrote"
    left = replace(ROW, left="finished")
    assert evidence_of({1: left}, {0: own, 1: ENDED}).ended_rank() is None
    elsewhere = replace(ENDED, machine="elsewhere")
    assert evidence_of({1: ROW}, {0: own, 1: elsewhere}).ended_rank() is None


def test_observers_of_silent_and_absent_ranks_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def answer(addresses: dict[int, Address]) -> dict[int, Report | None]:
        asked.extend(addresses)
        return {rank: Report(idle=2.0) for rank in addresses}

    monkeypatch.setattr(module, "reports_of", answer)
    own = Identity.own()
    writes = replace(ROW, report=Report(idle=1.0))
    known = evidence_of({0: writes, 1: writes}, dict.fromkeys(range(3), own))
    assert known.ask_observers() == {0: Report(idle=1.0), 1: Report(idle=1.0), 2: Report(idle=2.0)}
    assert asked == [2], "it has written nothing"

    asked.clear()
    known.board.heard[1] -= 5.0
    known.ask_observers()
    assert asked == [1, 2]


def test_a_rank_is_seen_by_its_row_and_its_observer() -> None:
    own = Identity.own()
    known = evidence_of({1: replace(ROW, in_collective=True)}, dict.fromkeys(range(3), own))
    known.board.heard[1] -= 5.0
    seen = known.seen({1: Report(idle=3.0, stopped=2.0), 2: None})
    assert seen[1].unmoved == pytest.approx(9.0, abs=0.5), "its own count and the silence since"
    assert seen[1].begun == {"0": 4} and seen[1].in_collective and not seen[1].is_absent
    assert (seen[1].observed, seen[1].idle, seen[1].stopped) == (True, 3.0, 2.0)
    assert not seen[2].observed and seen[2].is_absent


def test_ranks_that_nobody_knows_have_three_times_as_long() -> None:
    known = evidence_of({}, {0: Identity.own()})
    assert known.seen({2: None})[2].silent == pytest.approx(20.0, abs=0.5)
    known.forget(time.monotonic())
    assert known.seen({2: None})[2].silent < 0.5, "this process was away"


def test_a_rank_that_is_silent_with_its_observer_has_vanished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: dict[int, Any] = {1: Report(gone=True), 2: Report()}
    monkeypatch.setattr(module, "report_of", lambda address: answers[address.port])
    known = evidence_of({1: ROW, 2: ROW}, dict.fromkeys(range(3), Identity.own()))
    broke = time.monotonic() - 5.0
    assert not known.has_vanished(1, since=broke), "it wrote a moment ago"
    known.board.heard = dict.fromkeys((1, 2), broke)
    assert known.has_vanished(1, since=broke)
    assert not known.has_vanished(2, since=broke), "its observer answers"
