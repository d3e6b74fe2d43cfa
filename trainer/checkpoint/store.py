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
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import xxhash

from ..errors import CheckpointError
from ..untrusted import is_count, parse_json, path_inside, read_small
from .contents import STATE, Contents, is_rank_file
from .ranges import FileFact, hash_file, write_file

FORMAT, VERSION = "samecurve-checkpoint", 1
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-([0-9]{8,18})")
_OURS = re.compile(rf"\.?{_NAME.pattern}(\.part|\.old|\.damaged)?|\.probe-[0-9a-f]{{32}}")


def name_of(step: int) -> str:
    return f"step-{step:08d}"


@dataclass(frozen=True, kw_only=True)
class Found:
    """A checkpoint as it lies there.

    Args:
        step: by its name.
        problem: why it cannot be loaded; empty if nothing is known against it.
        broken: whether the problem is in its files; otherwise this program or this machine cannot read them now.
        manifest: what it says about itself; empty if that cannot be read.
    """

    path: Path
    step: int
    problem: str = ""
    broken: bool = False
    manifest: Mapping[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        return dict(self.manifest.get("files", {}))

    @property
    def bytes(self) -> int:
        return sum(int(fact["bytes"]) for fact in self.files.values())

    def open(self) -> Contents:
        """Open it, once it was verified.

        Raises:
            CheckpointError: its files cannot be read any more.
        """
        try:
            return Contents.of(self.path, self.files)
        except (CheckpointError, OSError) as error:
            raise CheckpointError(f"{self.path}: {error}") from error

    def damaged(self, problem: str) -> Found:
        return dataclasses.replace(self, problem=problem, broken=bool(problem))

    def unreadable(self, problem: str) -> Found:
        return dataclasses.replace(self, problem=problem, broken=False)

    def checked(self, check: Callable[[], str]) -> Found:
        """The same with what ``check`` says against it, or cannot read of it."""
        try:
            return self.damaged(check())
        except (FileNotFoundError, NotADirectoryError) as error:
            return self.damaged(f"{error.filename} is missing")
        except OSError as error:
            return self.unreadable(f"cannot be read: {error}")
        except CheckpointError as error:
            cause = error.__cause__
            return self.unreadable(str(error)) if isinstance(cause, OSError) else self.damaged(str(error))


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


def _sealed(manifest: Mapping[str, Any]) -> str:
    """The manifest as text, with the checksum of itself: so that a flipped bit in it is found as well."""
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    digest = xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True, allow_nan=False).encode())
    return json.dumps({**body, "checksum": digest}, indent=1, sort_keys=True) + "\n"


# -- reading --------------------------------------------------------------------------------------


def listing(folder: Path) -> list[Found]:
    """List the checkpoints in a folder, the newest first, looked at without reading their tensors.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    try:
        names = [entry for entry in folder.iterdir() if _NAME.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from None
    return sorted((look(entry) for entry in names), key=lambda found: found.step, reverse=True)


def look(path: Path) -> Found:
    """Find out what a checkpoint says about itself, and whether its files are there in their sizes.

    Whatever reads a checkpoint begins here: the manifest of a stranger's may name any file and say anything.
    """
    named = _NAME.fullmatch(path.name)
    bare = Found(path=path, step=int(named[1]) if named else -1)
    manifest: dict[str, Any] = {}

    def read_manifest() -> str:
        try:
            if not stat.S_ISDIR(os.stat(path).st_mode):
                return "is no folder"
        except (FileNotFoundError, NotADirectoryError):
            return "does not exist"
        try:
            text = read_small(path_inside(path, MANIFEST))
        except (FileNotFoundError, NotADirectoryError):
            return f"{MANIFEST} is missing"
        try:
            said = parse_json(text)
            sealed = isinstance(said, dict) and _sealed(said).encode() == text
        except ValueError as error:
            return f"{MANIFEST} cannot be read: {error}"
        if not sealed or said.get("format") != FORMAT:
            return f"{MANIFEST} was changed after it was written"
        manifest.update(said)
        return ""

    bare = bare.checked(read_manifest)
    if bare.problem:
        return bare
    if manifest.get("version") != VERSION:
        version = str(manifest.get("version"))[:20]
        return bare.unreadable(f"has version {version} of the format; this program reads {VERSION}")
    problem = _misfit(manifest)
    if problem:
        return bare.damaged(f"{MANIFEST}: {problem}")
    found = dataclasses.replace(bare, step=manifest["step"], manifest=manifest)
    if named and found.step != bare.step:
        return found.damaged(f"{MANIFEST} is that of step {found.step}")
    return found.checked(lambda: _wrong_file(found))


def _misfit(manifest: Mapping[str, Any]) -> str:
    """Say which part of a manifest is not what the format has there, or empty."""
    files = manifest.get("files")
    for key in ("step", "samples", "world_size"):
        if not is_count(manifest.get(key)):
            return f"{key!r} is no whole number"
    for key in ("strategy", "created"):
        if not (isinstance(manifest.get(key), str) and manifest[key].isprintable()):
            return f"{key!r} is no text"
    try:
        if datetime.fromisoformat(manifest["created"]).tzinfo is None:
            return "'created' has no time zone"
    except ValueError:
        return "'created' is no time"
    if not isinstance(files, dict):
        return "'files' is no mapping"
    for name, fact in files.items():
        fits = isinstance(fact, dict) and is_count(fact.get("bytes")) and isinstance(fact.get("xxh3"), str)
        if not fits:
            return f"{name!r} has no size or digest"
    ranks = sorted(name for name in files if is_rank_file(name))
    if len(ranks) != manifest["world_size"] or ranks != [f"rank-{rank:05d}.safetensors" for rank in range(len(ranks))]:
        return f"lists the files of {len(ranks)} processes instead of {manifest['world_size']}"
    return "" if STATE in files else f"does not list {STATE}"


def _wrong_file(found: Found) -> str:
    """Say which file is missing, has another size or does not belong there, or empty."""
    for name, fact in found.files.items():
        try:
            size = path_inside(found.path, name).lstat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return f"{name} is missing"
        if size != fact["bytes"]:
            return f"{name} has {size} bytes instead of {fact['bytes']}"
    foreign = sorted(set(_names_in(found.path)) - set(found.files) - {MANIFEST})
    if foreign:
        return f"{foreign[0] if foreign[0].isprintable() else ascii(foreign[0])} does not belong to it"
    return ""


def _names_in(folder: Path) -> Iterator[str]:
    """Name everything in a folder that is no folder itself; names that begin with a dot do not count."""
    left = [folder]
    while left:
        for entry in left.pop().iterdir():
            if stat.S_ISDIR(entry.lstat().st_mode):
                left.append(entry)
            elif not entry.name.startswith("."):
                yield entry.relative_to(folder).as_posix()


def changed(found: Found, names: Iterable[str]) -> str:
    """Say which of these files is the first whose bytes are not those that were written, or empty.

    Raises:
        OSError: one of them cannot be read.
    """
    for name in names:
        if hash_file(found.path / name) != found.files[name]["xxh3"]:
            return f"{name} was changed after it was written"
    return ""


def verify(found: Found) -> Found:
    """Read every byte, and hold the tensors to the model that state.json lists."""
    if not found.problem:
        found = found.checked(lambda: changed(found, found.files))
    return found if found.problem else understood(found)


def understood(found: Found) -> Found:
    """Hold what the files say to each other, once their bytes are known to be right."""

    def read() -> str:
        contents = Contents.of(found.path, found.files)
        if contents.state["step"] != found.step:
            return f"{STATE} is that of step {contents.state['step']}"
        return contents.problem()

    return found.checked(read)
