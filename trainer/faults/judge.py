"""Who holds up a job: one pure function of what is known of each rank.

Ranks of one job begin the same collectives in the same order, and each process group counts those
that a rank has begun. So it is counted who waits for whom: the others wait for the rank that has
begun fewest, wherever in their code they wait.

The rules, in this order, each only where nothing in the job has moved:

1. A rank that is stopped, or whose machine does not answer, holds up the others, whatever they seem
   to be doing.
2. So does a rank that waits for a process of its own that is stopped.
3. A rank that is behind the others is stuck, unless it works, or waits for something outside of the
   job.
4. Where all have begun the same, and none works or waits for something outside, those are stuck
   that are in no collective; where all are in one, they are in different ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Fault(Enum):
    """How a rank holds up the job; the value is what the message says of it."""

    STOPPED = "is stopped, or its machine is"
    CHILD_STOPPED = "waits for its process {child}, which is stopped"
    STUCK = "stands still"
    BEHIND = "has not entered what the others wait in"
    APART = "waits in another call than others"
    # The store, through which ranks watch each other, does not answer: ``watchdog.py`` finds these.
    STORE_STOPPED = "is stopped, and holds the store through which the ranks are watched"
    STORE_SILENT = "does not answer, and holds the store through which the ranks are watched"
    CUT_OFF = "is cut off from the others"


_DOES_NOTHING = (Fault.STOPPED, Fault.STORE_STOPPED, Fault.STORE_SILENT)


@dataclass(frozen=True)
class Finding:
    """The fault of one rank.

    Args:
        fault: which it is.
        child: the number of a process that the rank started and that is stopped; "" for none.
    """

    fault: Fault
    child: str = ""

    def text(self, hang_seconds: float) -> str:
        """Return what the message says of the rank."""
        words = self.fault.value.format(child=self.child)
        if self.fault in _DOES_NOTHING:
            since = "it has done nothing"
        else:
            since = "nothing in the job has moved"
        return f"{words}: {since} for {hang_seconds:g} s (hang_seconds)"


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
        is_absent: it is not in the part of the program that is watched: not yet, or no more.
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
    is_absent: bool = False

    def is_stopped(self, limit: float) -> bool:
        """Return whether it was stopped, or nothing of it has answered, for ``limit`` seconds."""
        is_cut_off = not self.observed and self.silent >= limit
        return self.stopped >= limit or is_cut_off

    def stopped_child(self, limit: float) -> str:
        """Return the number of a stopped process for which it waits; "" for none.

        The processes of a rank are looked at only once it has been idle for a while, so half of the
        limit is enough.
        """
        if self.idle < limit or self.traced:
            return ""
        for process, seconds in self.stopped_children.items():
            if seconds >= limit / 2:
                return process
        return ""

    def is_excused(self, limit: float) -> bool:
        """Return whether it may take its time: it works, or waits for no rank of the job."""
        works = not self.observed or self.idle < limit
        # By a debugger, or by somebody who may continue it in a moment.
        is_halted = self.traced or self.stopped > 0.0
        return works or is_halted or self.is_absent or bool(self.outside)


def judge(ranks: Mapping[int, Seen], limit: float, *, gpu: bool = False) -> dict[int, Finding]:
    """Return which ranks hold up the job, and by which fault; {} where none is known to.

    Args:
        ranks: what is known of each.
        limit: seconds after which a rank counts as stopped or stuck.
        gpu: whether the ranks compute on GPUs: what waits for one may use a whole core, or none.
    """
    # 1. A stopped rank is certain, so the others need not have waited for the whole limit: they may
    # have been in a long step.
    stopped = [rank for rank, seen in ranks.items() if seen.is_stopped(limit)]
    others = [seen for rank, seen in ranks.items() if rank not in stopped]
    if any(seen.unmoved < limit / 2 for seen in others):
        return {}
    if stopped:
        return dict.fromkeys(stopped, Finding(Fault.STOPPED))

    if any(seen.unmoved < limit for seen in others):
        return {}

    # 2. A process that a rank started.
    waiting = _waiting_for_stopped_children(ranks, limit)
    if waiting:
        return waiting

    # 3. A rank that is behind.
    behind = ranks_behind(ranks)
    if behind:
        return _judge_behind({rank: ranks[rank] for rank in behind}, limit)

    # 4. All have begun the same.
    return _judge_abreast(ranks, limit, gpu=gpu)


def _waiting_for_stopped_children(ranks: Mapping[int, Seen], limit: float) -> dict[int, Finding]:
    waiting = {}
    for rank, seen in ranks.items():
        child = seen.stopped_child(limit)
        if child:
            waiting[rank] = Finding(Fault.CHILD_STOPPED, child)
    return waiting


def _judge_behind(behind: Mapping[int, Seen], limit: float) -> dict[int, Finding]:
    """Judge ranks that others wait for."""
    if any(seen.is_excused(limit) for seen in behind.values()):
        return {}
    findings = {}
    for rank, seen in behind.items():
        fault = Fault.BEHIND if seen.in_collective else Fault.STUCK
        findings[rank] = Finding(fault)
    return findings


def _judge_abreast(ranks: Mapping[int, Seen], limit: float, *, gpu: bool) -> dict[int, Finding]:
    """Judge ranks that have all begun the same collectives, or in different orders."""
    if any(seen.is_excused(limit) for seen in ranks.values()):
        return {}
    elsewhere = [rank for rank, seen in ranks.items() if not seen.in_collective]
    if gpu and len(elsewhere) == len(ranks):
        return {}  # each may wait for its own GPU
    if elsewhere:
        return dict.fromkeys(elsewhere, Finding(Fault.STUCK))
    return dict.fromkeys(ranks, Finding(Fault.APART))


def ranks_behind(ranks: Mapping[int, Seen]) -> list[int]:
    """Return the ranks that others wait for.

    Each has begun fewer collectives than another rank of some group, and in no group more than
    another. There is none where all have begun the same, or in different orders.
    """
    counts: dict[str, list[int]] = {}
    for seen in ranks.values():
        for group, count in seen.begun.items():
            counts.setdefault(group, []).append(count)
    most = {group: max(numbers) for group, numbers in counts.items()}
    least = {group: min(numbers) for group, numbers in counts.items()}

    behind = []
    for rank, seen in ranks.items():
        is_behind = any(count < most[group] for group, count in seen.begun.items())
        is_ahead = any(count > least[group] for group, count in seen.begun.items())
        if is_behind and not is_ahead:
            behind.append(rank)
    return behind
