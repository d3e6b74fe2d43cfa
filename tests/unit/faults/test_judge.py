"""Who holds up a job: the table of cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainer.faults.judge import Fault, Finding, Seen, judge, ranks_behind

LIMIT = 8.0
STOPPED, STUCK = Finding(Fault.STOPPED), Finding(Fault.STUCK)
BEHIND, APART = Finding(Fault.BEHIND), Finding(Fault.APART)
CHILD_STOPPED = Finding(Fault.CHILD_STOPPED, "77")
WAITS = Seen(unmoved=9.0, idle=9.0, begun={"world": 5}, in_collective=True)
UNSEEN = replace(
    WAITS, in_collective=False
)  # in a wait that no frame shows: DeepSpeed's, the user's, one in C++
LOCKED = Seen(unmoved=9.0, idle=9.0, begun={"world": 4})
BUSY = replace(LOCKED, idle=0.2)
SPINS = replace(UNSEEN, idle=0.0)  # waits for a GPU whose kernel waits for the other ranks
MOVES = replace(BUSY, unmoved=0.4)
HALTED = replace(LOCKED, silent=9.0, stopped=9.0)
LET_GO = replace(LOCKED, silent=0.2, stopped=0.0, idle=0.1)
SILENT = replace(LOCKED, silent=9.0)
CUT_OFF = replace(SILENT, observed=False)
ASKS = replace(LOCKED, outside="system call 45")
DEBUGGED = replace(SILENT, traced=True)
NOT_THERE = replace(SILENT, is_absent=True, begun={})
OWN_STOPPED = replace(LOCKED, stopped_children={"77": 9.0})

CASES = {
    # -- a rank is stopped: whatever the others do
    "the others wait in a collective": ([WAITS, HALTED], {1: STOPPED}),
    "they wait where no frame shows it": ([UNSEEN, HALTED], {1: STOPPED}),
    "they spin for a GPU": ([SPINS, HALTED], {1: STOPPED}),
    "they wait for something else": ([ASKS, HALTED], {1: STOPPED}),
    "they are in a debugger": ([DEBUGGED, HALTED], {1: STOPPED}),
    "they came to their wait a little later": ([replace(WAITS, unmoved=4.5), HALTED], {1: STOPPED}),
    "they still go on": ([replace(WAITS, unmoved=2.0), HALTED], {}),
    "it is stopped in a socket": ([WAITS, replace(HALTED, outside="system call 45")], {1: STOPPED}),
    "it had begun as much": ([UNSEEN, replace(HALTED, begun={"world": 5})], {1: STOPPED}),
    "it had begun more": ([UNSEEN, replace(HALTED, begun={"world": 6})], {1: STOPPED}),
    "it has not come so far": ([WAITS, replace(NOT_THERE, stopped=9.0)], {1: STOPPED}),
    "its machine does not answer": ([WAITS, CUT_OFF], {1: STOPPED}),
    "two of three": ([HALTED, WAITS, HALTED], {0: STOPPED, 2: STOPPED}),
    "for a short time": ([WAITS, replace(HALTED, stopped=5.0)], {}),
    "for a short time, and idle before": ([WAITS, replace(HALTED, stopped=5.0, idle=20.0)], {}),
    "it goes on again": ([WAITS, LET_GO], {}),
    "all were, and this one goes on first": ([replace(WAITS, unmoved=0.3), HALTED], {}),
    "a process of its own is": (
        [WAITS, OWN_STOPPED],
        {1: CHILD_STOPPED},
    ),
    "a process of its own is, as was seen a little later": (
        [WAITS, replace(OWN_STOPPED, stopped_children={"77": 7.0})],
        {1: CHILD_STOPPED},
    ),
    "a process of its own is, by a debugger": ([WAITS, replace(OWN_STOPPED, traced=True)], {}),
    "a process of its own is, and it works": ([WAITS, replace(OWN_STOPPED, idle=0.1)], {}),
    # -- a rank is stuck: it has begun fewer collectives than the others
    "on a lock": ([WAITS, LOCKED], {1: STUCK}),
    "on a lock, and no frame shows who waits": ([UNSEEN, LOCKED], {1: STUCK}),
    "on a lock, and the others spin": ([SPINS, LOCKED], {1: STUCK}),
    "the first of four": ([LOCKED, WAITS, UNSEEN, WAITS], {0: STUCK}),
    "keeping Python's lock": ([WAITS, SILENT], {1: STUCK}),
    "in a collective that the others are through": (
        [WAITS, replace(LOCKED, in_collective=True)],
        {1: BEHIND},
    ),
    "while another group has counted as much": (
        [
            replace(UNSEEN, begun={"world": 5, "votes": 3}),
            replace(LOCKED, begun={"world": 4, "votes": 3}),
        ],
        {1: STUCK},
    ),
    "and one waits for one that waits for it": (
        [
            replace(UNSEEN, begun={"rows 0-1": 5, "columns 0-2": 7}),
            replace(UNSEEN, begun={"rows 0-1": 5, "columns 1-3": 7}),
            replace(UNSEEN, begun={"rows 2-3": 5, "columns 0-2": 6}),
            replace(LOCKED, begun={"rows 2-3": 4, "columns 1-3": 6}),
        ],
        {3: STUCK},
    ),
    # -- a rank that is behind, and may be
    "it works": ([WAITS, BUSY], {}),
    "it keeps Python's lock and works": ([WAITS, replace(SILENT, idle=0.2)], {}),
    "it waits for an answer": ([WAITS, ASKS], {}),
    "it is in a debugger": ([WAITS, DEBUGGED], {}),
    "it has not come so far, and is not stopped": ([WAITS, NOT_THERE], {}),
    "nobody sees whether it works": ([WAITS, replace(LOCKED, observed=False)], {}),
    "it moved a moment ago": ([WAITS, MOVES], {}),
    "another one moved a moment ago": ([WAITS, LOCKED, MOVES], {}),
    # -- all have begun the same
    "one is in no collective": ([WAITS, replace(LOCKED, begun={"world": 5})], {1: STUCK}),
    "all are in one": ([WAITS, WAITS], {0: APART, 1: APART}),
    "none is in one": ([LOCKED, LOCKED], {0: STUCK, 1: STUCK}),
    "one waits for an answer": ([LOCKED, ASKS], {}),
    "one works": ([LOCKED, BUSY], {}),
    "in different orders": (
        [
            replace(WAITS, begun={"world": 5, "votes": 3}),
            replace(WAITS, begun={"world": 4, "votes": 4}),
        ],
        {0: APART, 1: APART},
    ),
    "before any group": ([replace(LOCKED, begun={}), replace(WAITS, begun={})], {0: STUCK}),
}


@pytest.mark.parametrize("case", CASES)
def test_who_holds_up_a_job(case: str) -> None:
    ranks, expected = CASES[case]
    assert judge(dict(enumerate(ranks)), LIMIT) == expected


def test_a_finding_is_told_with_the_limit() -> None:
    assert STOPPED.text(10.0) == (
        "is stopped, or its machine is: it has done nothing for 10 s (hang_seconds)"
    )
    assert CHILD_STOPPED.text(4.0) == (
        "waits for its process 77, which is stopped: nothing in the job has moved for 4 s "
        "(hang_seconds)"
    )


def test_on_gpus_ranks_that_are_in_no_collective_may_wait_for_their_own() -> None:
    assert judge({0: LOCKED, 1: LOCKED}, LIMIT, gpu=True) == {}
    assert judge({0: WAITS, 1: LOCKED}, LIMIT, gpu=True) == {1: STUCK}


def test_the_ranks_that_others_wait_for_are_behind_some_and_ahead_of_none() -> None:
    def behind(*counts: dict[str, int]) -> list[int]:
        return ranks_behind(
            {rank: Seen(unmoved=9.0, begun=begun) for rank, begun in enumerate(counts)}
        )

    assert behind({"world": 5}, {"world": 5}) == []
    assert behind({"world": 7}, {"world": 5}, {"world": 6}, {"world": 5}) == [1, 3]
    assert behind({"world": 5, "votes": 1}, {"world": 5}) == [], "a group that it is not in"
    assert behind({"a": 2, "b": 1}, {"a": 1, "b": 2}) == [], "in different orders"
    assert behind({}, {}) == []
