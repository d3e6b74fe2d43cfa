"""Who holds up a job: one pure function of what is known of each rank.

Ranks of one job begin the same collectives in the same order, and each process group counts those
that a rank has begun. So who waits for whom is counted: the others wait for the rank that has begun
fewest, wherever they do so.

In this order, and each only where nothing in the job has moved:
1. A rank that is stopped, or whose machine does not answer, holds up the others, whatever they seem
    to be doing.
2. So does one that waits for a process of its own that is stopped.
3. A rank that is behind the others is stuck, unless it works, or waits for something outside of the
    job.
4. Where all have begun the same, and none works or waits for something outside, those are stuck
   that are in no collective; where all are in one, they are in different ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

STOPPED = "is stopped, or its machine is"
STORE_STOPPED = "is stopped, and holds the store through which the ranks are watched"
STORE_SILENT = "does not answer, and holds the store through which the ranks are watched"
CUT_OFF = "is cut off from the others"
STUCK = "stands still"
BEHIND = "has not entered what the others wait in"
APART = "waits in another call than others"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is known of one rank. All times are seconds until now.

    Args:
        unmoved: since it last moved: a step, a phase, a collective that it began.
        silent: since anything was heard of it: its thread of the watch, or its observer.
        observed: whether its observer answers.
        idle: since its process, or one that it started, used a core or a disk; as observed.
        stopped: since its process was stopped (SIGSTOP); 0 where it is not.
        stopped_children: the same of processes that it started, by their numbers; those that are
            stopped.
        traced: a debugger is attached to it.
        begun: collectives that it has begun, by process group.
        in_collective: its main thread is in a call of torch.distributed, as far as its frames show.
        outside: what its main thread waits for outside of the job; "" for nothing.
        is_away: it is in no part of the program that is watched: not there yet, or through.
    """

    unmoved: float
    silent: float = 0.0
    observed: bool = True
    idle: float = 0.0
    stopped: float = 0.0
    stopped_children: Mapping[str, float] = field(default_factory=dict)
    traced: bool = False
    begun: Mapping[str, int] = field(default_factory=dict)
    in_collective: bool = False
    outside: str = ""
    is_away: bool = False

    def is_stopped(self, limit: float) -> bool:
        """Tell whether it has been stopped, or nothing of it has answered, for ``limit`` seconds."""
        cut_off = not self.observed and self.silent >= limit
        return self.stopped >= limit or cut_off

    def may_take_its_time(self, limit: float) -> bool:
        """Tell whether it works, or waits for what is not a rank of this job."""
        works = not self.observed or self.idle < limit
        is_halted = (
            self.traced or self.stopped > 0.0
        )  # by a debugger; by whoever may continue it in a moment
        return works or is_halted or self.is_away or bool(self.outside)


def judge(ranks: Mapping[int, Seen], limit: float, *, gpu: bool = False) -> dict[int, str]:
    """Return which ranks hold up the job, and how to say so; empty where none is known to.

    Args:
        limit: seconds after which a rank counts as stopped or stuck.
        gpu: whether the ranks compute on GPUs: what waits for one may use a whole core, or none.
    """
    # A stopped rank is certain: the others need not have waited for as long. They may have been in
    # a long step.
    if any(seen.unmoved < limit / 2 for seen in ranks.values() if not seen.is_stopped(limit)):
        return {}
    stopped = [rank for rank, seen in ranks.items() if seen.is_stopped(limit)]
    if stopped:
        return dict.fromkeys(stopped, STOPPED)

    if any(seen.unmoved < limit for seen in ranks.values()):
        return {}
    waiting_for_own = {rank: _stopped_child(seen, limit) for rank, seen in ranks.items()}
    waiting_for_own = {rank: pid for rank, pid in waiting_for_own.items() if pid}
    if waiting_for_own:
        return {
            rank: f"waits for its process {pid}, which is stopped"
            for rank, pid in waiting_for_own.items()
        }

    behind = ranks_behind(ranks)
    if behind:
        if any(ranks[rank].may_take_its_time(limit) for rank in behind):
            return {}
        return {rank: BEHIND if ranks[rank].in_collective else STUCK for rank in behind}

    if any(seen.may_take_its_time(limit) for seen in ranks.values()):
        return {}
    elsewhere = [rank for rank, seen in ranks.items() if not seen.in_collective]
    if gpu and len(elsewhere) == len(ranks):
        return {}  # each may wait for its own GPU
    return dict.fromkeys(elsewhere, STUCK) or dict.fromkeys(ranks, APART)


def ranks_behind(ranks: Mapping[int, Seen]) -> list[int]:
    """Return the ranks that others wait for: each has begun fewer collectives than another, and
    more than none.

    It is empty where all have begun the same, and where ranks have begun them in different orders.
    """
    most: dict[str, int] = {}
    least: dict[str, int] = {}
    for seen in ranks.values():
        for group, count in seen.begun.items():
            most[group] = max(count, most.get(group, count))
            least[group] = min(count, least.get(group, count))

    def is_behind(seen: Seen) -> bool:
        return any(count < most[group] for group, count in seen.begun.items())

    def is_ahead(seen: Seen) -> bool:
        return any(count > least[group] for group, count in seen.begun.items())

    return [rank for rank, seen in ranks.items() if is_behind(seen) and not is_ahead(seen)]


def _stopped_child(seen: Seen, limit: float) -> str:
    # The children of a process are looked at only once it has been idle for a while.
    pids: Sequence[str] = [
        pid for pid, seconds in seen.stopped_children.items() if seconds >= limit / 2
    ]
    return pids[0] if pids and seen.idle >= limit and not seen.traced else ""
