"""Which checkpoint to go on from: decided once, by all ranks, after every byte was read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..errors import CheckpointError, ConfigError, Origin, Problem
from . import discover
from .discover import Found

if TYPE_CHECKING:
    from ..distributed.agreement import Control

T = TypeVar("T")


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
    """Choose the checkpoint that ``resume`` asks for. Collective: call on every rank.

    Args:
        resume: ``none``, ``auto`` (the newest complete checkpoint in ``folder``, if there is one) or a path.
        folder: of the run's own checkpoints.
        home: where ``resume`` was set, for messages.

    Raises:
        ConfigError: the path names no checkpoint, or one that newer ones follow.
        CheckpointError: the checkpoint of the path is damaged (there is no falling back); or all that ``auto`` found
            are; or one cannot be read, or not by this program, which does not mean that it is damaged.
    """
    if resume == "none":
        return Start()
    if resume != "auto":
        return _explicit(Path(resume), folder, control, home)
    passed_over: list[Found] = []
    for candidate in _from_main(control, lambda: discover.listing(folder)):
        found = verify_together(candidate, control)
        if not found.problem:
            return Start(found=found, passed_over=tuple(passed_over), continues=True)
        if not found.broken:
            raise CheckpointError(
                f"{found.path}: {found.problem}; resume: auto passes over what is damaged only; to go on from an older "
                "checkpoint, name it with resume, and give another output_dir"
            )
        passed_over.append(found)
    if passed_over:
        damages = "; ".join(f"{one.path.name}: {one.problem}" for one in passed_over)
        raise CheckpointError(
            f"{folder}: all checkpoints are damaged ({damages}); to start anew give another output_dir, or --overwrite "
            "without resume, which deletes this one"
        )
    return Start(continues=True)


def _explicit(path: Path, folder: Path, control: Control, home: str) -> Start:
    def look() -> Found:
        if not os.path.lexists(path / discover.MANIFEST) and path.is_dir():
            inside = [p for p in (path, path / "checkpoints") if discover.listing(p)]
            if inside:
                names = ", ".join(found.path.name for found in discover.listing(inside[0]))
                rule = f"holds checkpoints and is none; name one of {names} in {inside[0]}, or use resume: auto"
                raise ConfigError(Problem(origin=Origin(home, key="resume"), value=str(path), rule=rule))
        return discover.look(path)

    found = verify_together(_from_main(control, look), control)
    if found.problem:
        instead = "; resume: auto takes the newest complete checkpoint instead" if found.broken else ""
        raise CheckpointError(f"{path}: {found.problem}{instead}")
    own = path.resolve().parent == folder.resolve()
    newer = _from_main(
        control, lambda: [other.path.name for other in discover.listing(folder) if other.step > found.step]
    )
    if own and newer:
        rule = f"{folder} goes on to {newer[0]}; give another output_dir to branch off, or delete the newer ones"
        raise ConfigError(Problem(origin=Origin(home, key="resume"), value=str(path), rule=rule))
    return Start(found=found, continues=own)


def verify_together(found: Found, control: Control) -> Found:
    """Read every byte of a checkpoint, each rank some of the files, and know the same about it. Collective."""
    [found, *_] = control.gather(found)  # what the main process saw: another rank may look a moment later
    if found.problem:
        return found
    names = sorted(found.files)
    mine = [name for number, name in enumerate(names) if number % control.world_size == control.rank]
    parts = control.gather(found.checked(lambda: discover.changed(found, mine)))
    wrong = sorted((part for part in parts if part.problem), key=lambda part: not part.broken)  # damage counts first
    return wrong[0] if wrong else _from_main(control, lambda: discover.understood(found))


def _from_main(control: Control, work: Callable[[], T]) -> T:
    """Do ``work`` on the main process; its result, or its error, is everybody's."""
    results: list[T] = []
    control.on_main(lambda: results.append(work()))
    return control.gather(results)[0][0]  # type: ignore[no-any-return]
