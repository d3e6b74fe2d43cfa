"""The folder of a run's checkpoints, changed so that none is lost; ``discover.py`` reads it.

    checkpoints/step-00000120/manifest.json            sizes and checksums of all other files; written last
                              state.json               step, position, schedule, configuration, ...
                              rank-00000.safetensors   the ranges that rank 0 owned; one such file a rank
                              extras/...               what belongs beside an exported model

A checkpoint is written to a hidden sibling and flushed, the manifest comes last, then one rename
gives it its name. Older ones go only after that, by a rename first, so that at any instant a name
that can be seen is complete. ``docs/checkpoint_format.md`` describes the format for other programs.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .discover import FORMAT, MANIFEST, NAME, VERSION, CheckpointInfo, named, sealed, step_of
from .disk import FileFact, delete, part_of, publish, write_file

_OURS = re.compile(rf"\.?{NAME.pattern}(\.part|\.old|\.damaged)?|\.probe-[0-9a-f]{{32}}")


def name_of(step: int) -> str:
    """Return the name of a step's checkpoint."""
    return f"step-{step:08d}"


def temporary_of(folder: Path, step: int) -> Path:
    """Return the folder in which a step's checkpoint is written."""
    return part_of(folder / name_of(step))


def begin(folder: Path, step: int) -> None:
    """Make the empty temporary folder of a checkpoint; ``CheckpointError`` if one of this step is
    there already.
    """
    if (folder / name_of(step)).exists():
        raise CheckpointError(
            f"{folder / name_of(step)}: exists already, and was not written by this run"
        )
    delete(temporary_of(folder, step))
    temporary_of(folder, step).mkdir(parents=True)


def commit(folder: Path, step: int, facts: Mapping[str, Any], files: Sequence[FileFact]) -> None:
    """Give a temporary folder, whose ``files`` are on the disk, the name of its step."""
    listed = {fact.name: {"bytes": fact.bytes, "xxh3": fact.xxh3} for fact in sorted(files)}
    manifest = {"format": FORMAT, "version": VERSION, "step": step, **facts, "files": listed}
    write_file(temporary_of(folder, step) / MANIFEST, [sealed(manifest).encode()])
    publish(folder / name_of(step))


def prune(folder: Path, *, keep_last: int, keep_every: int | None, pinned: Collection[int]) -> None:
    """Delete old checkpoints, after a newer one was committed.

    Args:
        keep_last: so many of the newest stay.
        keep_every: those of a multiple of these steps stay.
        pinned: the steps of those that stay, such as the best one.
    """
    for step in map(step_of, named(folder)[keep_last:]):
        if step not in pinned and not (keep_every and step % keep_every == 0):
            hidden = folder / f".{name_of(step)}.old"
            os.rename(folder / name_of(step), hidden)
            delete(hidden)


def clean(folder: Path) -> None:
    """Delete what was left half written or half deleted, as far as the disk lets it."""
    for entry in filter(is_ours, folder.glob(".step-*")):
        shutil.rmtree(entry, ignore_errors=True)


def set_aside(damaged: Iterable[CheckpointInfo]) -> None:
    """Rename damaged checkpoints, so that their names are free and they are still there to be
    looked at.
    """
    for one in damaged:
        target = one.path.with_name(f"{one.path.name}.damaged")
        try:
            delete(target)
            os.rename(one.path, target)
        except OSError as error:
            raise CheckpointError(
                f"{one.path}: is damaged and cannot be renamed: {error.strerror}"
            ) from None


def is_ours(entry: Path) -> bool:
    """Tell whether what lies in the folder of checkpoints has a name that only a run gives."""
    return _OURS.fullmatch(entry.name) is not None
