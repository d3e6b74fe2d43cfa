"""When a rank counts as moved, and what its row says of a wait outside of the job."""

from __future__ import annotations

import time

import pytest

from trainer.faults import own_row
from trainer.faults.observation import Address, Report
from trainer.faults.own_row import OwnRow
from trainer.faults.waits import Doing


class Rank:
    """A rank that does what the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: float | None = 8.0) -> None:
        self.moves = 0
        self.begun = {"0": ("world", 1)}
        self.report: Report | None = Report(idle=3.0)
        self.outside = ""
        self.continued = 0
        monkeypatch.setattr(own_row, "collectives_begun", lambda: self.begun)
        monkeypatch.setattr(own_row, "own_observer", lambda: Address("", 1, ""))
        monkeypatch.setattr(own_row, "report_of", lambda address: self.report)
        monkeypatch.setattr(own_row, "doing_in", lambda frames, native_thread: self.doing())
        monkeypatch.setattr(own_row, "continue_observer", self.continue_observer)
        self.row = OwnRow(lambda: (5, "training", self.moves), limit=limit)

    def doing(self) -> Doing:
        return Doing(text="f (a.py:1)", in_collective=False, outside=self.outside)

    def continue_observer(self) -> None:
        self.continued += 1


def test_a_step_or_a_collective_moves_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch)
    rank.row.note_moves(1.0)
    rank.row.note_moves(2.0)
    assert rank.row.moved == 1.0
    rank.moves = 1
    rank.row.note_moves(3.0)
    assert rank.row.moved == 3.0
    rank.begun = {"0": ("world", 2)}
    rank.row.note_moves(4.0)
    assert rank.row.moved == 4.0


def test_a_rank_that_does_not_move_sends_what_its_observer_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = Rank(monkeypatch)
    assert rank.row.make().report is None, "it moved a moment ago"
    rank.row.moved -= 9.0
    assert rank.row.make().report == Report(idle=3.0)

    rank.report = Report(gone=True)
    assert rank.row.make().report is None and not rank.continued
    rank.report = None
    assert rank.row.make().report is None and rank.continued == 1, "somebody stopped it"


def test_a_rank_that_may_hang_for_ever_asks_no_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch, limit=None)
    rank.row.moved -= 9.0
    assert rank.row.make().report is None


def test_a_wait_outside_of_the_job_counts_for_as_long_as_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = Rank(monkeypatch, limit=0.2)
    rank.outside = "a disk"
    assert rank.row.make().outside == "a disk"
    rank.outside = ""
    assert rank.row.make().outside == "a disk"
    time.sleep(0.3)
    assert rank.row.make().outside == ""


def test_rows_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch)
    first, second = rank.row.make(), rank.row.make()
    assert (first.count, second.count) == (1, 2)
    assert (first.step, first.phase) == (5, "training")
