"""Checkpoints found on a disk: what each says about itself, and whether it is true.

Whatever reads a checkpoint begins with ``look``, which trusts neither the manifest nor the files; ``verify`` reads
every byte as well. ``docs/checkpoint_format.md`` describes the format for other programs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import xxhash

from ..errors import CheckpointError
from .contents import STATE, Contents, is_rank_file
from .ranges import hash_file
from .untrusted import is_count, parse_json, path_inside, read_small

FORMAT, VERSION = "samecurve-checkpoint", 1
MANIFEST = "manifest.json"
NAME = re.compile(r"step-([0-9]{8,18})")


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


def sealed(manifest: Mapping[str, Any]) -> str:
    """The manifest as text, with the checksum of itself: so that a flipped bit in it is found as well."""
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    digest = xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True, allow_nan=False).encode())
    return json.dumps({**body, "checksum": digest}, indent=1, sort_keys=True) + "\n"


def listing(folder: Path) -> list[Found]:
    """List the checkpoints in a folder, the newest first, looked at without reading their tensors.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    try:
        names = [entry for entry in folder.iterdir() if NAME.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from None
    return sorted((look(entry) for entry in names), key=lambda found: found.step, reverse=True)


def look(path: Path) -> Found:
    """Find out what a checkpoint says about itself, and whether its files are there in their sizes.

    Whatever reads a checkpoint begins here: the manifest of a stranger's may name any file and say anything.
    """
    named = NAME.fullmatch(path.name)
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
            whole = isinstance(said, dict) and sealed(said).encode() == text
        except ValueError as error:
            return f"{MANIFEST} cannot be read: {error}"
        if not whole or said.get("format") != FORMAT:
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
