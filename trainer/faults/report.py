"""The message of a job whose ranks do not go on: what happened to which, what each was doing, how
to go on.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from ..distributed.launcher import launcher_processes
from ..text import columns, hidden_words
from .board import Row, Who

GONE = (
    "is gone without a word (killed, out of memory, or aborted in C++, as where ranks use different parameters in one "
    "step without find_unused_parameters: true)"
)
_HEAD = ("rank", "host", "pid", "step", "phase", "doing", "collectives begun")


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
    """
    table: list[tuple[str, ...]] = [_HEAD]
    for rank in sorted(rows.keys() | who.keys()):
        table.append(_line(rank, rows.get(rank), who.get(rank)))
    now = datetime.now().isoformat(" ", "milliseconds")
    told = [f"rank {rank} {text}" for rank, text in sorted(verdict.items())]
    parts = [f"{now} the job ends; its ranks:", *columns(table), crashes, *told, advice]
    return "\n".join(part for part in parts if part)


def _line(rank: int, row: Row | None, who: Who | None) -> tuple[str, ...]:
    host, pid = (who.host, str(who.identity.pid)) if who else ("?", "?")
    if row is None:
        return str(rank), host, pid, "?", "?", "?", "?"
    begun = ", ".join(f"{name} {count}" for name, count in row.begun.values())
    return str(rank), host, pid, str(row.step), row.phase, row.left or row.doing, begun


def crash_of(row: Row) -> str:
    """Return the stack of a process that crashed, from the file that it left, and delete that; ""
    where none is.
    """
    if not row.crash:
        return ""
    try:
        text = Path(row.crash).read_text(encoding="utf-8", errors="replace")
        Path(row.crash).unlink(missing_ok=True)
    except OSError:
        return ""
    # "Fatal Python error: ...", then other threads, then the one that crashed, then a list of
    # extension modules.
    error, _, rest = text.partition("\n")
    crashed = "".join(rest.partition("Current thread")[1:]).partition("\n\n")[0]
    return "\n".join(filter(None, [error, crashed]))


def resume_command(argument: str) -> str:
    """Return the command that started this job, with ``argument`` where it lacks it."""
    launchers = launcher_processes()
    line = launchers[-1].cmdline() if launchers else [sys.executable, *sys.argv]
    if (
        line
        and os.path.basename(line[0]).startswith("python")
        and len(line) > 1
        and not line[1].startswith("-")
    ):
        line = [os.path.basename(line[1]), *line[2:]] if launchers else line
    text = shlex.join(hidden_words(line))
    return text if argument in text else f"{text} {argument}"
