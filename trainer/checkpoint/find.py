"""Which checkpoint ``resume`` asks for, with every byte of it read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..distributed.agreement import Agreement
from ..distributed.restarts import restarts
from ..errors import CheckpointError, ConfigError, Origin, Problem
from .discover import CheckpointInfo, inspect, verify_together
from .start import Start
from .store import named, step_of

T = TypeVar("T")


def find_start(resume: str, folder: Path, agreement: Agreement, *, origin: Origin) -> Start:
    """Choose the checkpoint that ``resume`` asks for, and read every byte of it.

    Collective: call on every rank.

    Args:
        resume: ``none``, ``auto`` (the newest complete checkpoint in ``folder``, if there is one)
            or a path.
        folder: of the run's own checkpoints.
        origin: of ``resume``, for messages.

    Raises:
        ConfigError: newer checkpoints of the same run follow the path.
        CheckpointError: the path is no checkpoint, or a damaged one. Or all checkpoints that
            ``auto`` found are damaged, or one cannot be read by this program or machine.
    """
    if resume == "none":
        return Start()
    own = _from_main(agreement, partial(named, folder))
    if resume == "auto":
        return _newest_complete(own, folder, agreement)
    return _start_at(Path(resume), folder, own, agreement, origin)


def start_of_attempt(resume: str, folder: Path, agreement: Agreement, *, origin: Origin) -> Start:
    """Choose the checkpoint to begin with: as ``find_start``, when started again the newest own.

    The command is the same for every attempt: what it says about ``resume`` is meant for the first
    one, and counts for a later one only if nothing was saved. Collective: call on every rank.

    Raises:
        ConfigError, CheckpointError: as ``find_start``.
    """
    if not restarts():
        return find_start(resume, folder, agreement, origin=origin)

    start = find_start("auto", folder, agreement, origin=origin)
    if start.found is None and resume not in ("none", "auto"):
        start = find_start(resume, folder, agreement, origin=origin)
        return replace(start, continues=True)
    return start


def _newest_complete(own: list[Path], folder: Path, agreement: Agreement) -> Start:
    """Begin with the first of these checkpoints that is not damaged.

    Collective: call on every rank.
    """
    damaged: list[CheckpointInfo] = []
    for path in own:
        info = _inspect_and_verify(path, agreement)
        if not info.problem:
            return Start(found=info, passed_over=tuple(damaged), continues=True)
        if not info.broken:
            raise CheckpointError(
                f"{info.path}: {info.problem}; resume: auto passes over damaged checkpoints only; "
                "start again once it can be read, or, to resume from an older checkpoint, name it "
                "with resume, and give another output_dir"
            )
        damaged.append(info)

    if damaged:
        damages = "; ".join(f"{info.path.name}: {info.problem}" for info in damaged)
        raise CheckpointError(
            f"{folder}: all checkpoints are damaged ({damages}); to start anew give another "
            "output_dir, or --overwrite without resume, which deletes this one"
        )
    return Start(continues=True)


def _start_at(
    path: Path, folder: Path, own: list[Path], agreement: Agreement, origin: Origin
) -> Start:
    """Begin with the checkpoint at a path. Collective: call on every rank."""
    info = _inspect_and_verify(path, agreement)
    if info.problem:
        raise CheckpointError(
            f"{path}: {info.problem}; name another checkpoint (RUN/checkpoints/step-...), or give "
            "resume: auto, which takes the newest complete one"
        )

    continues = path.resolve().parent == folder.resolve()
    newer = [entry.name for entry in own if step_of(entry) > info.step]
    if continues and newer:
        rule = (
            f"{folder} continues to {newer[0]}; give another output_dir to branch off, or delete "
            "the newer ones"
        )
        raise ConfigError(Problem(origin=origin.named("resume"), value=str(path), rule=rule))
    return Start(found=info, continues=continues)


def _inspect_and_verify(path: Path, agreement: Agreement) -> CheckpointInfo:
    """Return the same result on every rank. Collective: call on every rank."""
    info = _from_main(agreement, partial(inspect, path))
    return verify_together(info, agreement)


def _from_main(agreement: Agreement, work: Callable[[], T]) -> T:
    """Do ``work`` on the main process. Return its result, or raise its error, on every rank.

    Collective: call on every rank.
    """
    results: list[T] = []
    agreement.run_on_main(lambda: results.append(work()))
    everywhere: list[list[T]] = agreement.gather(results)
    return everywhere[0][0]
