"""The checkpoint that ``resume`` asks for, with every byte read."""

from __future__ import annotations

from pathlib import Path

from ..distributed.agreement import Agreement
from ..distributed.restarts import restarts
from ..errors import CheckpointError, LaunchError, Origin
from .discover import CheckpointInfo, verify_together
from .start import Start
from .store import named, step_of


def start_of_attempt(resume: str, folder: Path, agreement: Agreement, *, origin: Origin) -> Start:
    """Choose the checkpoint to begin with, and read every byte.

    The command is the same for every attempt of a job: ``resume`` is meant for the first attempt,
    and counts for later attempts only if nothing was saved. Collective: call on every rank.

    Args:
        resume: ``none``, ``auto`` (the newest complete checkpoint in ``folder``, or none) or a
            path.
        folder: of the run's own checkpoints.
        origin: of ``resume``, for messages.

    Raises:
        ConfigError: newer checkpoints of the same run follow the path.
        LaunchError: the path is no folder.
        CheckpointError: the path is no checkpoint, or a damaged checkpoint. Or all checkpoints that
            ``auto`` found are damaged, or this program or machine cannot read a checkpoint.
    """
    again = restarts() > 0
    own: list[Path] = agreement.of_main(named(folder))
    if resume == "auto" or again:
        start = _newest_complete(own, folder, agreement)
        if start.found is not None or resume in ("none", "auto"):
            return start

    path = Path(resume)
    info = verify_together(path, agreement)
    if info.problem:
        kind = CheckpointError if path.is_dir() else LaunchError
        raise kind(
            f"{path}: {info.problem}; name another checkpoint (RUN/checkpoints/step-...), or give "
            "resume: auto, which takes the newest complete one"
        )

    continues = path.resolve().parent == folder.resolve()
    if continues and own and step_of(own[0]) > info.step:
        raise origin.named("resume").error(
            f"{folder} continues to {own[0].name}; give another output_dir to branch off, or "
            "delete the newer ones",
            str(path),
        )
    return Start(found=info, continues=continues or again)


def _newest_complete(own: list[Path], folder: Path, agreement: Agreement) -> Start:
    """Begin with the first of these checkpoints that is not damaged.

    Collective: call on every rank.
    """
    damaged: list[CheckpointInfo] = []
    for path in own:
        info = verify_together(path, agreement)
        if not info.problem:
            return Start(found=info, passed_over=tuple(damaged), continues=True)
        if not info.broken:
            raise CheckpointError(
                f"{path}: {info.problem}; resume: auto passes over damaged checkpoints only; start "
                "again when it can be read, or name an older checkpoint and another output_dir"
            )
        damaged.append(info)

    if damaged:
        damages = "; ".join(f"{info.path.name}: {info.problem}" for info in damaged)
        raise CheckpointError(
            f"{folder}: all checkpoints are damaged ({damages}); to start anew give another "
            "output_dir, or --overwrite without resume, which deletes this one"
        )
    return Start(continues=True)
