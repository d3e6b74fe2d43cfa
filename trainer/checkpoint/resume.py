"""Which checkpoint to go on from: decided once, by all ranks, after every byte was read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import CheckpointError, ConfigError, Problem
from . import store
from .store import Found

if TYPE_CHECKING:
    from ..control import Control


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where a run begins.

    Args:
        found: the checkpoint to go on from; None starts anew.
        passed_over: newer ones that are damaged.
        continues: whether ``output_dir`` may be a used one, which this run goes on with.
    """

    found: Found | None = None
    passed_over: tuple[Found, ...] = ()
    continues: bool = False


def find_start(resume: str, folder: Path, control: Control, *, home: str) -> Start:
    """What ``resume`` asks for. Every rank enters.

    Args:
        resume: ``none``, ``auto`` (the newest complete checkpoint in ``folder``, if there is one) or a path.
        folder: of the run's own checkpoints.
        home: where ``resume`` was set, for messages.

    Raises:
        ConfigError, CheckpointError: the path names no checkpoint, or a damaged one: there is no falling back.
    """
    if resume == "none":
        return Start()
    if resume != "auto":
        return _explicit(Path(resume), folder, control, home)
    [candidates, *_] = control.gather(store.listing(folder))
    passed_over: list[Found] = []
    for candidate in candidates:
        found = verify_together(candidate, control)
        if not found.problem:
            return Start(found=found, passed_over=tuple(passed_over), continues=True)
        passed_over.append(found)
    return Start(passed_over=tuple(passed_over), continues=True)


def _explicit(path: Path, folder: Path, control: Control, home: str) -> Start:
    if not (path / store.MANIFEST).exists() and path.is_dir():
        inside = [p for p in (path, path / "checkpoints") if store.listing(p)]
        if inside:
            names = ", ".join(found.path.name for found in store.listing(inside[0]))
            rule = f"holds checkpoints and is none; name one of {names} in {inside[0]}, or use resume: auto"
            raise ConfigError(Problem(where=home, key="resume", value=str(path), rule=rule))
    found = verify_together(store.look(path), control)
    if found.problem:
        raise CheckpointError(f"{path}: {found.problem}; resume: auto takes the newest complete checkpoint instead")
    own = path.resolve().parent == folder.resolve()
    newer = [other.path.name for other in store.listing(folder) if own and other.step > found.step]
    if newer:
        rule = f"{folder} goes on to {newer[0]}; give another output_dir to branch off, or delete the newer ones"
        raise ConfigError(Problem(where=home, key="resume", value=str(path), rule=rule))
    return Start(found=found, continues=own)


def verify_together(found: Found, control: Control) -> Found:
    """Read every byte of a checkpoint, each rank some of the files, and know the same about it."""
    [found, *_] = control.gather(found)  # what the main process saw: another rank may look a moment later
    if found.problem:
        return found
    names = sorted(found.files)
    mine = [name for number, name in enumerate(names) if number % control.world_size == control.rank]
    problems = control.gather(store.changed(found, mine))
    return found.damaged(next((problem for problem in problems if problem), ""))
