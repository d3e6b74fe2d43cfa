"""The checkpoints on a disk, whether each is as its manifest says, and which a run begins with.

``inspect`` trusts neither the manifest nor the files. ``verify`` reads every byte as well.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ..distributed.agreement import Agreement
from ..distributed.restarts import restarts
from ..errors import CheckpointError, LaunchError, Origin
from .contents import MANIFEST_FORM, Contents, check_form
from .disk import Unreadable, hash_file, path_inside, read_json
from .store import MANIFEST, STATE, VERSION, CheckpointInfo, Start, named, sealed, step_of


def listing(folder: Path) -> list[CheckpointInfo]:
    """Inspect the checkpoints in a folder, the newest first."""
    return [inspect(path) for path in named(folder)]


def inspect(path: Path) -> CheckpointInfo:
    """Read the manifest of a checkpoint, and check the sizes of its files."""
    info = CheckpointInfo(path=path, step=step_of(path))
    with _noting(info):
        file = path_inside(path, MANIFEST)
        manifest = read_json(file)
        if not isinstance(manifest, dict) or sealed(manifest).encode() != file.read_bytes():
            raise CheckpointError(f"{MANIFEST} was changed after it was written")
        version = manifest.get("version")
        if version != VERSION:
            raise Unreadable(
                f"has version {version!s:.20} of the format; this program reads {VERSION}"
            )
        check_form(file, MANIFEST_FORM)
        if info.step not in (-1, manifest["step"]):
            raise CheckpointError(f"{MANIFEST} is that of step {manifest['step']}")
        info.step, info.manifest = manifest["step"], manifest
        for name, fact in info.files.items():
            size = path_inside(path, name).lstat().st_size
            if size != fact["bytes"]:
                raise CheckpointError(f"{name} has {size} bytes instead of {fact['bytes']}")
    return info


@contextlib.contextmanager
def _noting(info: CheckpointInfo) -> Iterator[None]:
    """Note the error of a block as the problem of a checkpoint."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        info.problem = f"{os.path.relpath(error.filename, info.path)} is missing"
        info.broken = True
    except OSError as error:
        info.problem = f"cannot be read: {error}"
    except CheckpointError as error:
        info.problem = str(error)
        info.broken = not isinstance(error, Unreadable)


def opened(info: CheckpointInfo) -> Contents:
    """Open a checkpoint that was verified. Raise ``CheckpointError`` if it has a problem."""
    if info.problem:
        raise CheckpointError(f"{info.path}: {info.problem}")
    return Contents.of(info.path, info.files)


def verify(info: CheckpointInfo, part: int = 0, parts: int = 1) -> CheckpointInfo:
    """Read every byte: of the ``parts`` shares of the files only share ``part``. Note a problem."""
    if info.problem:
        return info
    with _noting(info):
        for name in sorted(info.files)[part::parts]:
            if hash_file(info.path / name) != info.files[name]["xxh3"]:
                raise CheckpointError(f"{name} was changed after it was written")

        step = Contents.of(info.path, info.files).state["step"]
        if step != info.step:
            raise CheckpointError(f"{STATE} is that of step {step}")
    return info


def verify_together(path: Path, agreement: Agreement) -> CheckpointInfo:
    """Inspect and verify a checkpoint, each rank some of the files. Collective."""
    info: CheckpointInfo = agreement.of_main(inspect(path))
    found = verify(replace(info), agreement.rank, agreement.world_size)
    problems = agreement.gather(found.problem)
    if agreement.rank == 0 and any(problems) and not verify(info).problem:
        # A network file system may show a rank an old listing, and a node may have another disk
        # under this name: only files that the main process cannot read either are damaged.
        problem = next(filter(None, problems))
        info.problem = (
            f"cannot be read on rank {problems.index(problem)}: {problem} there, and whole for "
            "the main process"
        )
    return agreement.of_main(info)  # type: ignore[no-any-return]


def how_to_resume(folder: Path) -> str:
    """Return the command that resumes a job that ends now from the newest checkpoint."""
    for info in listing(folder):
        if not info.problem:
            return f"to resume from {info.path}: start the same command with --resume auto"
    return "there is no checkpoint to resume from"


def start_of_attempt(resume: str, folder: Path, agreement: Agreement, *, origin: Origin) -> Start:
    """Choose the checkpoint to begin with, and read every byte.

    The command is the same for every attempt of a job: ``resume`` is meant for the first attempt,
    and counts for later attempts only if nothing was saved. Collective: call on every rank.

    Args:
        resume: ``none``, ``auto`` (the newest complete one in ``folder``, or none) or a path.
        folder: of the run's own checkpoints.

    Raises:
        ConfigError: newer checkpoints of the same run follow the path.
        LaunchError: the path is no folder.
        CheckpointError: the path, or all that ``auto`` found, are no checkpoints to load.
    """
    again = restarts() > 0
    own: list[Path] = agreement.of_main(named(folder))
    if resume == "auto" or again:
        start = _newest_complete(own, agreement)
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


def _newest_complete(own: list[Path], agreement: Agreement) -> Start:
    """Begin with the first of these checkpoints that is not damaged. Collective."""
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
        raise CheckpointError(
            f"{damaged[0].path}: {damaged[0].problem}; no checkpoint there is whole; to start anew "
            "give another output_dir, or --overwrite without resume, which deletes this one"
        )
    return Start(continues=True)
