"""Changes to the folder of a run's checkpoints, made so that none is lost.

    checkpoints/step-00000120/
        manifest.json            sizes and checksums of all other files, written last
        state.json               step, position, schedule, configuration, ...
        rank-00000.safetensors   the ranges that rank 0 owned. Each rank has such a file
        extras/...               the small files beside an exported model

A checkpoint is written to a hidden sibling and flushed, the manifest comes last, then a rename
makes the checkpoint visible. Older checkpoints are deleted only after that, and renamed first: at
any instant each visible checkpoint is complete. ``discover.py`` reads the
folder. ``docs/checkpoint_format.md`` describes the format for other programs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from ..errors import CheckpointError
from .disk import delete, part_of, publish, write_file

FORMAT, VERSION = "samecurve-checkpoint", 1
MANIFEST = "manifest.json"
NAME = re.compile(r"step-([0-9]{8,18})")
STATE = "state.json"
_OURS = re.compile(rf"\.?{NAME.pattern}(\.part|\.old|\.damaged)?|\.probe-[0-9a-f]{{32}}")


def named(folder: Path) -> list[Path]:
    """Return the entries of a folder that have the name of a checkpoint, the newest first."""
    try:
        found = [entry for entry in folder.iterdir() if NAME.fullmatch(entry.name)]
    except FileNotFoundError:
        return []
    return sorted(found, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """Return the step in a checkpoint's name. -1 for another name."""
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def sealed(manifest: Mapping[str, Any]) -> str:
    """Return the text of a manifest with a checksum of this text, which shows a flipped bit."""
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    digest = xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True, allow_nan=False).encode())
    return json.dumps({**body, "checksum": digest}, indent=1, sort_keys=True) + "\n"


def name_of(step: int) -> str:
    """Return the name of a step's checkpoint."""
    return f"step-{step:08d}"


def temporary_of(folder: Path, step: int) -> Path:
    """Return the folder in which a step's checkpoint is written."""
    return part_of(folder / name_of(step))


def begin(folder: Path, step: int) -> None:
    """Make the empty temporary folder of a checkpoint of a new step."""
    path = folder / name_of(step)
    if path.exists():
        raise CheckpointError(f"{path}: exists already, and was not written by this run")
    delete(part_of(path))
    part_of(path).mkdir(parents=True)


def commit(folder: Path, facts: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """Give a temporary folder, whose ``files`` are on the disk, the name of its step.

    ``facts`` are the step and the other values of the manifest, ``files`` its entries.
    """
    step = facts["step"]
    text = sealed({"format": FORMAT, "version": VERSION, **facts, "files": files})
    write_file(temporary_of(folder, step) / MANIFEST, [text.encode()])
    publish(folder / name_of(step))


def prune(folder: Path, *, keep_last: int, keep_every: int | None, pinned: Collection[int]) -> None:
    """Delete old checkpoints: not the newest, the pinned, nor multiples of ``keep_every`` steps."""
    for path in named(folder)[keep_last:]:
        step = step_of(path)
        if step not in pinned and (keep_every is None or step % keep_every):
            hidden = path.with_name(f".{path.name}.old")
            os.rename(path, hidden)
            delete(hidden)


def clean(folder: Path) -> None:
    """Delete half written and half deleted checkpoints, as far as the disk allows."""
    for entry in folder.glob(".step-*"):
        if is_ours(entry):
            shutil.rmtree(entry, ignore_errors=True)


def set_aside(damaged: Iterable[Path]) -> None:
    """Rename damaged checkpoints to ``.damaged``, so that their steps can be written again."""
    for path in damaged:
        target = path.with_name(f"{path.name}.damaged")
        delete(target)
        os.rename(path, target)


def is_ours(entry: Path) -> bool:
    """Return whether an entry of a folder of checkpoints has a name that only a run gives."""
    return _OURS.fullmatch(entry.name) is not None


@dataclass(kw_only=True)
class CheckpointInfo:
    """A checkpoint as it is on the disk.

    Args:
        step: by the name. -1 for another name, if the manifest cannot be read either.
        manifest: the content of manifest.json. Empty if the file cannot be read.
        problem: why the checkpoint cannot be loaded. Empty if no reason is known.
        broken: whether the files are damaged, rather than unreadable for this program or machine.
    """

    path: Path
    step: int
    manifest: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    broken: bool = False

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        return self.manifest.get("files", {})  # type: ignore[no-any-return]

    @property
    def bytes(self) -> int:
        return sum(fact["bytes"] for fact in self.files.values())


class Start(NamedTuple):
    """The beginning of a run.

    Args:
        found: the checkpoint to resume from. None to begin at step 0.
        passed_over: newer checkpoints that are damaged.
        continues: whether ``output_dir`` may be the used folder of a run that is continued.
    """

    found: CheckpointInfo | None = None
    passed_over: tuple[CheckpointInfo, ...] = ()
    continues: bool = False

    @property
    def step(self) -> int:
        return self.found.step if self.found else 0

    @property
    def samples(self) -> int:
        return int(self.found.manifest["samples"]) if self.found else 0
