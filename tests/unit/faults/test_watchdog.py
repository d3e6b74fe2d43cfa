"""What the watch concludes from rows, from observers, and from a store that does not answer."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.faults import evidence, own_row, watchdog
from trainer.faults.board import Row, Who
from trainer.faults.identity import Identity, own_machine
from trainer.faults.observation import Address, Report
from trainer.faults.watchdog import Watchdog

ROW = Row(
    count=3, step=5, phase="training", unmoved=9.0, doing="f (a.py:1)", begun={"0": ("world", 4)}
)
IDLE, HALTED, WORKS = Report(idle=9.0), Report(stopped=9.0), Report(idle=0.1)
HERE, ELSEWHERE = own_machine(), "another machine"


class FakeBoard:
    """What ranks wrote, without a store."""

    def __init__(self, rows: dict[int, Row], machines: dict[int, str]) -> None:
        self.rows = rows
        self.heard: dict[int, float] = {}
        own = Identity.own()
        self.who = {
            rank: Who(
                host=f"node{rank}",
                identity=replace(own, machine=machine),
                observer=Address("", rank, ""),
            )
            for rank, machine in machines.items()
        }

    def read(self, ranks: object) -> None:
        pass


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Make a watch of a rank that has not moved for 9 s, and that only notes how it would end."""

    def make(
        rows: dict[int, Row],
        answers: dict[int, Report | None] | None = None,
        *,
        silent: float = 0.2,
        machines: dict[int, str] | None = None,
        rank: int = 0,
    ) -> Any:
        settings = Watchdog(
            rank=rank,
            world_size=2,
            position=lambda: (5, "training", 7),
            hang_seconds=10.0,
            gpu=False,
            advice=lambda: "go on",
            log=print,
        )
        board: Any = FakeBoard(rows, machines or {0: HERE, 1: HERE})
        watch: Any = watchdog._Watch(settings, board)
        now = time.monotonic()
        watch.own.moved = now - 9.0
        watch.evidence.began = now - 60.0
        board.heard = dict.fromkeys(rows, now - silent)
        watch.ends = []
        watch.end = watch.ends.append
        watch.claimed = set()  # ranks whose observers were asked to claim

        given = answers or {}

        def claim(address: Address, word: str) -> dict[str, bool]:
            return {"first": address.port not in watch.claimed}

        monkeypatch.setattr(evidence, "reports_of", lambda asked: {n: given.get(n) for n in asked})
        monkeypatch.setattr(watchdog, "report_of", lambda address: given.get(address.port))
        monkeypatch.setattr(watchdog, "ask", claim)
        return watch

    return make


def said(watch: Any) -> str:
    """Judge, and return the last line but one of the message; "" for none."""
    watch.judge_ranks(8.0)
    return watch.ends[0].splitlines()[-2] if watch.ends else ""


BEHIND = replace(ROW, begun={"0": ("world", 3)})
OWN = replace(ROW, report=IDLE, in_collective=True)


def test_a_rank_that_writes_is_judged_by_its_row(watch: Callable[..., Any]) -> None:
    stuck = {0: OWN, 1: replace(BEHIND, report=IDLE)}
    assert (
        said(watch(stuck))
        == "rank 1 stands still: nothing in the job has moved for 10 s (hang_seconds)"
    )
    assert said(watch({0: OWN, 1: replace(BEHIND, report=WORKS)})) == ""
    assert said(watch({0: OWN, 1: BEHIND})) == "", "its observer does not answer it"


def test_a_silent_rank_is_judged_by_its_observer(watch: Callable[..., Any]) -> None:
    rows = {0: OWN, 1: BEHIND}
    halted = "rank 1 is stopped, or its machine is: it has done nothing for 10 s (hang_seconds)"
    assert said(watch(rows, {1: HALTED}, silent=9.0)) == halted
    assert said(watch(rows, {1: WORKS}, silent=9.0)) == "", "a call of C keeps Python's lock"
    assert said(watch(rows, {1: IDLE}, silent=9.0)).startswith("rank 1 stands still")
    assert said(watch(rows, {1: None}, silent=9.0)) == halted, "nothing of its machine answers"
    assert said(watch(rows, {1: None}, silent=5.0)) == ""


def test_a_rank_that_ended_before_it_was_heard_of_is_named(watch: Callable[..., Any]) -> None:
    """Killed in its first step, it has written no row that was read; its connections broke."""
    alone = watch({1: OWN}, rank=1)
    gone = replace(alone.board.who[0].identity, pid=2**22 + 1)  # a number that no process has
    alone.board.who[0] = replace(alone.board.who[0], identity=gone)
    alone.has_store = False
    text = alone._name_lost_rank()
    assert re.search(r"^rank 0 ended silently", text, re.MULTILINE), text


def test_a_rank_whose_observer_is_gone_is_gone_unless_it_is_seen_to_live(
    watch: Callable[..., Any],
) -> None:
    rows, gone = {0: OWN, 1: BEHIND}, {1: Report(gone=True)}
    elsewhere = {0: HERE, 1: ELSEWHERE}
    assert said(watch(rows, gone, silent=5.0, machines=elsewhere)).startswith(
        "rank 1 ended silently"
    )
    assert said(watch(rows, gone, silent=5.0)) == ""


def test_a_rank_that_is_not_there_yet_is_let_alone_unless_it_is_stopped(
    watch: Callable[..., Any],
) -> None:
    assert said(watch({0: OWN}, {1: IDLE})) == ""
    assert said(watch({0: OWN}, {1: HALTED})).startswith("rank 1 is stopped")
    assert (
        said(watch({0: OWN, 1: replace(ROW, left="finished")}, {1: Report(gone=True)}, silent=9.0))
        == ""
    )


def test_one_that_answered_a_moment_ago_is_not_cut_off(watch: Callable[..., Any]) -> None:
    """A machine with too much to do answers one question late."""
    answers: dict[int, Report | None] = {1: WORKS}
    one = watch({0: OWN, 1: BEHIND}, answers, silent=9.0)
    assert said(one) == ""
    answers[1] = None
    assert said(one) == ""
    one.evidence.answered[1] -= 9.0
    assert said(one).startswith("rank 1 is stopped, or its machine is")


@pytest.mark.parametrize(
    ("answer", "unanswered", "machine", "expected"),
    [
        (HALTED, 5.0, HERE, "rank 0 is stopped, and holds the store"),
        (HALTED, 5.0, ELSEWHERE, "rank 0 is stopped, and holds the store"),
        (Report(stopped=3.0), 9.0, HERE, ""),
        (Report(traced=True), 9.0, HERE, ""),
        (None, 5.0, HERE, ""),
        (None, 9.0, HERE, "rank 0 does not answer, and holds the store"),
        (None, 9.0, ELSEWHERE, "rank 1 is cut off from the others"),
        (IDLE, 9.0, ELSEWHERE, "rank 1 is cut off from the others"),
    ],
)
def test_a_store_that_does_not_answer(
    watch: Callable[..., Any],
    answer: Report | None,
    unanswered: float,
    machine: str,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchdog, "rank_of_store", lambda: 0)
    one = watch({0: ROW, 1: ROW}, {0: answer}, rank=1, machines={0: machine, 1: HERE})
    one.judge_store(unanswered, 8.0)
    told = one.ends[0].splitlines()[-2] if one.ends else ""
    assert told.startswith(expected) and bool(told) == bool(expected)


def test_what_holds_the_store_is_told_once(
    watch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "rank_of_store", lambda: 0)
    one = watch({0: ROW, 1: ROW}, {0: HALTED}, rank=1)
    one.claimed = {0}
    one.judge_store(9.0, 8.0)
    assert one.ends == [""], "another rank tells it"


def test_a_launcher_that_holds_the_store_and_does_not_answer(
    watch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "rank_of_store", lambda: None)
    one = watch({0: ROW, 1: ROW}, rank=1)
    one.judge_store(5.0, 8.0)
    assert one.ends == []
    one.judge_store(9.0, 8.0)
    assert "rank 1 is cut off from the others" in one.ends[0]


def test_nobody_is_judged_after_this_process_was_away(
    watch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped, or a call of C kept Python's lock, while it asked the store."""
    for stalls, expected in ((True, 0), (False, 1)):
        one = watch({0: ROW, 1: ROW}, rank=1)
        monkeypatch.setattr(watchdog, "rank_of_store", lambda: None)
        times = [0.0, 0.5, 20.0, 20.5] if stalls else [half / 2 for half in range(40)]
        clock = iter(times)
        last = [0.0]

        def now(clock: Any = clock, last: Any = last) -> float:
            last[0] = next(clock, last[0])
            return float(last[0])

        turns = iter([False] * (3 if stalls else 30) + [True])
        one._block_ended = SimpleNamespace(wait=lambda seconds, turns=turns: next(turns, True))
        no_answer = threading.Event()
        one.look = lambda no_answer=no_answer: no_answer.wait(30)
        one.own.moved, one.evidence.began = 0.0, 0.0
        monkeypatch.setattr(own_row, "collectives_begun", dict)
        monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=now))
        one.run()
        no_answer.set()
        assert min(len(one.ends), 1) == expected
        monkeypatch.undo()
