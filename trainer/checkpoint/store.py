"""Checkpoints on disk: written so that none is lost, read so that no wrong one is taken.

    checkpoints/step-00000120/manifest.json            sizes and checksums of all other files; written last
                              state.json               step, position, schedule, configuration, ...
                              rank-00000.safetensors   the ranges that rank 0 owned; one such file a rank
                              extras/...               what belongs beside an exported model

A checkpoint is written to a hidden sibling, each file and both folders are flushed, the manifest comes last, then
one rename gives it its name. Older ones go only after that, by a rename first, so that at any instant a name that
can be seen is complete. ``docs/checkpoint_format.md`` describes the format for other programs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from ..errors import CheckpointError
from .ranges import FileFact, hash_file, write_file

FORMAT, VERSION = "samecurve-checkpoint", 1
MANIFEST, STATE = "manifest.json", "state.json"
_NAME = re.compile(r"step-(\d{8,})")


def name_of(step: int) -> str:
    return f"step-{step:08d}"


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint as it lies there.

    Args:
        step: by its name.
        problem: why it cannot be loaded; empty if nothing is known against it.
        manifest: what it says about itself; empty if that cannot be read.
    """

    path: Path
    step: int
    problem: str = ""
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        return dict(self.manifest.get("files", {}))

    @property
    def bytes(self) -> int:
        return sum(int(fact["bytes"]) for fact in self.files.values())

    def damaged(self, problem: str) -> Found:
        return dataclasses.replace(self, problem=problem)


# -- writing --------------------------------------------------------------------------------------


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
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)


def commit(folder: Path, step: int, facts: Mapping[str, Any], files: Sequence[FileFact]) -> None:
    """Give a temporary folder, whose ``files`` are on the disk, the name of its step."""
    temporary = temporary_of(folder, step)
    listed = {fact.name: {"bytes": fact.bytes, "xxh3": fact.xxh3} for fact in sorted(files, key=lambda f: f.name)}
    manifest = {"format": FORMAT, "version": VERSION, "step": step, **facts, "files": listed}
    for place in {path.parent for path in (temporary / name for name in listed)} - {temporary}:
        _flush(place)
    write_file(temporary / MANIFEST, [_sealed(manifest).encode()])
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
    steps = [int(named[1]) for entry in folder.iterdir() if (named := _NAME.fullmatch(entry.name))]
    old = sorted(steps, reverse=True)[keep_last:]
    gone = [step for step in old if step not in pinned and not (keep_every and step % keep_every == 0)]
    for step in gone:
        hidden = folder / f".{name_of(step)}.old"
        os.rename(folder / name_of(step), hidden)
        shutil.rmtree(hidden)
    return gone


def clean(folder: Path) -> None:
    """Delete what killed processes left half written or half deleted."""
    for entry in folder.glob(".step-*"):
        shutil.rmtree(entry)


def set_aside(found: Iterable[Found]) -> None:
    """Rename damaged checkpoints, so that their names are free and they are still there to be looked at."""
    for one in found:
        target = one.path.with_name(f"{one.path.name}.damaged")
        shutil.rmtree(target, ignore_errors=True)
        os.rename(one.path, target)


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sealed(manifest: Mapping[str, Any]) -> str:
    """The manifest as text, with the checksum of itself: so that a flipped bit in it is found as well."""
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    digest = xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())
    return json.dumps({**body, "checksum": digest}, indent=1, sort_keys=True) + "\n"


# -- reading --------------------------------------------------------------------------------------


def listing(folder: Path) -> list[Found]:
    """The checkpoints in a folder, the newest first, looked at without reading their tensors."""
    if not folder.is_dir():
        return []
    names = [entry for entry in folder.iterdir() if _NAME.fullmatch(entry.name)]
    return sorted((look(entry) for entry in names), key=lambda found: found.step, reverse=True)


def look(path: Path) -> Found:
    """What a checkpoint says about itself, and whether all its files are there in their sizes."""
    named = _NAME.fullmatch(path.name)
    step = int(named[1]) if named else -1
    bare = Found(path=path, step=step)
    if not path.is_dir():
        return bare.damaged("does not exist" if not path.exists() else "is no folder")
    try:
        text = (path / MANIFEST).read_text(encoding="utf-8")
        manifest = json.loads(text)
        same = isinstance(manifest, dict) and text == _sealed(manifest)
    except FileNotFoundError:
        return bare.damaged(f"{MANIFEST} is missing")
    except (OSError, ValueError) as error:
        return bare.damaged(f"{MANIFEST} cannot be read: {error}")
    if not same or manifest.get("format") != FORMAT:
        return bare.damaged(f"{MANIFEST} was changed after it was written")
    if manifest["version"] != VERSION:
        return bare.damaged(f"has version {manifest['version']} of the format; this program reads {VERSION}")
    found = Found(path=path, step=int(manifest["step"]), manifest=manifest)
    if named and found.step != step:
        return found.damaged(f"{MANIFEST} is that of step {found.step}")
    return found.damaged(_misfit(found))


def _misfit(found: Found) -> str:
    for name, fact in found.files.items():
        try:
            size = (found.path / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if size != fact["bytes"]:
            return f"{name} has {size} bytes instead of {fact['bytes']}"
    there = (path for path in found.path.rglob("*") if path.is_file() and not path.name.startswith("."))
    names = {path.relative_to(found.path).as_posix() for path in there}
    foreign = sorted(names - set(found.files) - {MANIFEST})
    return f"{foreign[0]} does not belong to it" if foreign else ""


def changed(found: Found, names: Iterable[str]) -> str:
    """The first of these files whose bytes are not those that were written, in words; empty if there is none."""
    for name in names:
        try:
            digest = hash_file(found.path / name)
        except OSError as error:
            return f"{name} cannot be read: {error}"
        if digest != found.files[name]["xxh3"]:
            return f"{name} was changed after it was written"
    return ""


def verify(found: Found) -> Found:
    """The same after reading every byte."""
    return found if found.problem else found.damaged(changed(found, found.files))
