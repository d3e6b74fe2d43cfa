"""Where an attempt begins that the launcher started again by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..distributed.agreement import Agreement
from ..distributed.restarts import restarts
from ..errors import Origin
from ..faults.report import resume_command
from .discover import Start, find_start, listing


def start_of_attempt(resume: str, folder: Path, agreement: Agreement, *, origin: Origin) -> Start:
    """Choose the checkpoint to begin with, as ``find_start``; of a job that was started again the
    newest of its own.

    The command is the same for every attempt: what it says about ``resume`` was meant for the first
    one, and holds for another where that saved nothing. Collective.

    Raises:
        ConfigError, CheckpointError: as ``find_start``.
    """
    if not restarts():
        return find_start(resume, folder, agreement, origin=origin)
    start = find_start("auto", folder, agreement, origin=origin)
    if start.found is None and resume not in ("none", "auto"):
        return replace(find_start(resume, folder, agreement, origin=origin), continues=True)
    return start


def restart_notices() -> list[str]:
    """Say that this is another attempt, where it is."""
    count = restarts()
    return (
        [f"started again by the launcher ({count} of --max_restarts): goes on as with resume: auto"]
        if count
        else []
    )


def how_to_go_on(folder: Path) -> str:
    """Say which checkpoint of ``folder`` is the newest, and by which command a job that ends now
    goes on from it.
    """
    for one in listing(folder):
        if not one.problem:
            return f"to go on from {one.path}: {resume_command('--resume auto')}"
    return "there is no checkpoint to go on from"
