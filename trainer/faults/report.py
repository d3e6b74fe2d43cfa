"""The message of a job that a rank holds up: which one, what each was doing, and how to resume."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime

from ..distributed.launcher import launcher_processes
from ..text import columns, hidden_words
from .board import Row, Who

GONE = (
    "ended silently (killed, out of memory, or aborted in C++, as where ranks use different "
    "parameters in one step without find_unused_parameters: true)"
)
_HEAD = ("rank", "host", "pid", "step", "phase", "doing", "collectives begun")
_UNKNOWN = "?"


def report_text(
    verdict: Mapping[int, str],
    rows: Mapping[int, Row],
    who: Mapping[int, Who],
    *,
    crashes: str,
    advice: str,
) -> str:
    """Return the message.

    Args:
        verdict: what happened to which ranks.
        rows: of the board; ``who`` wrote them.
        crashes: stacks of processes that crashed; "" for none.
        advice: how to resume.
    """
    table: list[tuple[str, ...]] = [_HEAD]
    for rank in sorted(rows.keys() | who.keys()):
        table.append(_line(rank, rows.get(rank), who.get(rank)))

    now = datetime.now().isoformat(" ", "milliseconds")
    faults = [f"rank {rank} {text}" for rank, text in sorted(verdict.items())]
    parts = [f"{now} the job ends; its ranks:", *columns(table), crashes, *faults, advice]
    return "\n".join(part for part in parts if part)


def _line(rank: int, row: Row | None, who: Who | None) -> tuple[str, ...]:
    """Return the columns of one rank."""
    host, pid = _UNKNOWN, _UNKNOWN
    if who is not None:
        host, pid = who.host, str(who.identity.pid)
    if row is None:
        return str(rank), host, pid, _UNKNOWN, _UNKNOWN, _UNKNOWN, _UNKNOWN
    begun = ", ".join(f"{name} {count}" for name, count in row.begun.values())
    return str(rank), host, pid, str(row.step), row.phase, row.left or row.doing, begun


def resume_command(argument: str) -> str:
    """Return the command that started this job, with ``argument`` where it lacks it."""
    launchers = launcher_processes()
    if launchers:
        words = _without_python(launchers[-1].cmdline())
    else:
        words = [sys.executable, *sys.argv]

    command = shlex.join(hidden_words(words))
    return command if argument in command else f"{command} {argument}"


def _without_python(words: Sequence[str]) -> list[str]:
    """Return ``torchrun ...`` for ``/usr/bin/python /usr/bin/torchrun ...``."""
    is_script = (
        len(words) > 1
        and os.path.basename(words[0]).startswith("python")
        and not words[1].startswith("-")
    )
    if is_script:
        return [os.path.basename(words[1]), *words[2:]]
    return list(words)
