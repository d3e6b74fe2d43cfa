"""Checkpoints on disk, written so that none is lost; ``discover.py`` finds and reads them.

    checkpoints/step-00000120/manifest.json            sizes and checksums of all other files; written last
                              state.json               step, position, schedule, configuration, ...
                              rank-00000.safetensors   the ranges that rank 0 owned; one such file a rank
                              extras/...               what belongs beside an exported model

A checkpoint is written to a hidden sibling, each file and both folders are flushed, the manifest comes last, then
one rename gives it its name. Older ones go only after that, by a rename first, so that at any instant a name that
can be seen is complete. ``docs/checkpoint_format.md`` describes the format for other programs.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .discover import FORMAT, MANIFEST, NAME, VERSION, Found, sealed
from .ranges import FileFact, write_file

_OURS = re.compile(rf"\.?{NAME.pattern}(\.part|\.old|\.damaged)?|\.probe-[0-9a-f]{{32}}")


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def temporary_of(folder: Path, step: int) -> Path:
    return folder / f".{name_of(step)}.part"


def begin(folder: Path, step: int) -> None:
    """Make the empty temporary folder of a checkpoint.

    Raises:
        CheckpointError: one of this step is there already.
    """
    if (folder / name_of(step)).exists():
        raise CheckpointError(f"{folder / name_of(step)}: exists already, and was not written by this run")
    temporary = temporary_of(folder, step)
    if os.path.lexists(temporary):
        _delete(temporary)
    temporary.mkdir(parents=True)


def commit(folder: Path, step: int, facts: Mapping[str, Any], files: Sequence[FileFact]) -> None:
    """Give a temporary folder, whose ``files`` are on the disk, the name of its step."""
    temporary = temporary_of(folder, step)
    listed = {fact.name: {"bytes": fact.bytes, "xxh3": fact.xxh3} for fact in sorted(files, key=lambda f: f.name)}
    manifest = {"format": FORMAT, "version": VERSION, "step": step, **facts, "files": listed}
    for place in {path.parent for path in (temporary / name for name in listed)} - {temporary}:
        _flush(place)
    write_file(temporary / MANIFEST, [sealed(manifest).encode()])
    _flush(temporary)
    os.rename(temporary, folder / name_of(step))
    _flush(folder)


def prune(folder: Path, *, keep_last: int, keep_every: int | None, pinned: Collection[int]) -> list[int]:
    """Delete old checkpoints and return their steps. Called after a newer one was committed.

    Args:
        keep_last: so many of the newest stay.
        keep_every: those of a multiple of these steps stay.
        pinned: the steps of those that stay, such as the best one.
    """
    steps = [int(named[1]) for entry in folder.iterdir() if (named := NAME.fullmatch(entry.name))]
    old = sorted(steps, reverse=True)[keep_last:]
    gone = [step for step in old if step not in pinned and not (keep_every and step % keep_every == 0)]
    for step in gone:
        hidden = folder / f".{name_of(step)}.old"
        os.rename(folder / name_of(step), hidden)
        _delete(hidden)
    return gone


def clean(folder: Path) -> None:
    """Delete what killed processes left half written or half deleted."""
    for entry in folder.glob(".step-*"):
        if is_ours(entry):
            _delete(entry)


def set_aside(found: Iterable[Found]) -> None:
    """Rename damaged checkpoints, so that their names are free and they are still there to be looked at.

    Raises:
        CheckpointError: one cannot be renamed.
    """
    for one in found:
        target = one.path.with_name(f"{one.path.name}.damaged")
        try:
            if os.path.lexists(target):
                _delete(target)
            os.rename(one.path, target)
        except OSError as error:
            raise CheckpointError(f"{one.path}: is damaged and cannot be renamed: {error.strerror}") from None


def is_ours(entry: Path) -> bool:
    """Whether what lies in the folder of checkpoints has a name that only a run gives."""
    return _OURS.fullmatch(entry.name) is not None


def _delete(entry: Path) -> None:
    """Delete a folder; of a link to one, only the link."""
    shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
