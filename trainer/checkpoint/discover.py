"""The checkpoints on a disk: what each says about itself, whether it is true, and which one to go
on from.

Whatever reads a checkpoint begins with ``inspect``, which trusts neither the manifest nor the
files; ``verify`` reads every byte as well. ``docs/checkpoint_format.md`` describes the format for
other programs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from ..distributed.agreement import Agreement
from ..errors import CheckpointError, ConfigError, Origin, Problem
from .contents import STATE, Contents
from .disk import hash_file
from .schema import MANIFEST_SCHEMA, check_schema
from .untrusted import Unreadable, path_inside, read_json

FORMAT, VERSION = "samecurve-checkpoint", 1
MANIFEST = "manifest.json"
NAME = re.compile(r"step-([0-9]{8,18})")
T = TypeVar("T")


@dataclass(kw_only=True)
class CheckpointInfo:
    """A checkpoint as it lies on the disk.

    Args:
        step: by its name; -1 where that is another one.
        manifest: what it says about itself; empty if that cannot be read.
        problem: why it cannot be loaded; empty if nothing is known against it.
        broken: whether the problem is in its files; otherwise this program or this machine cannot
            read them now.
    """

    path: Path
    step: int
    manifest: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    broken: bool = False

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        return dict(self.manifest.get("files", {}))

    @property
    def bytes(self) -> int:
        return sum(int(fact["bytes"]) for fact in self.files.values())

    def open(self) -> Contents:
        """Open it, once it was verified; ``CheckpointError`` if it has a problem, or cannot be read
        any more.
        """
        if not self.problem:
            with self.checking():
                return Contents.of(self.path, self.files)
        raise CheckpointError(f"{self.path}: {self.problem}")

    @contextlib.contextmanager
    def checking(self) -> Iterator[None]:
        """Take what the block raises as the problem; a block that comes after one should not be
        entered.
        """
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            self.problem, self.broken = (
                f"{os.path.relpath(error.filename, self.path)} is missing",
                True,
            )
        except OSError as error:
            self.problem = f"cannot be read: {error}"
        except CheckpointError as error:
            self.problem, self.broken = str(error), not isinstance(error, Unreadable)


def sealed(manifest: Mapping[str, Any]) -> str:
    """Return the manifest as text, with the checksum of itself: so that a flipped bit in it is
    found as well.
    """
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    digest = xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True, allow_nan=False).encode())
    return json.dumps({**body, "checksum": digest}, indent=1, sort_keys=True) + "\n"


def named(folder: Path) -> list[Path]:
    """List what a folder names as checkpoints, the newest first; ``CheckpointError`` if it cannot
    be read.
    """
    try:
        return sorted(
            (entry for entry in folder.iterdir() if NAME.fullmatch(entry.name)),
            key=step_of,
            reverse=True,
        )
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror}") from None


def listing(folder: Path) -> list[CheckpointInfo]:
    """Inspect the checkpoints in a folder, the newest first; ``CheckpointError`` if it cannot be
    read.
    """
    return [inspect(path) for path in named(folder)]


def step_of(path: Path) -> int:
    """Return the step that a checkpoint's name says; -1 where it is another name."""
    found = NAME.fullmatch(path.name)
    return int(found[1]) if found else -1


def inspect(path: Path) -> CheckpointInfo:
    """Find out what a checkpoint says about itself, and whether its files are there in their sizes."""
    info = CheckpointInfo(path=path, step=step_of(path))
    with info.checking():
        manifest = _read_manifest(path)
        if info.step not in (-1, manifest["step"]):
            raise CheckpointError(f"{MANIFEST} is that of step {manifest['step']}")
        info.step, info.manifest = manifest["step"], manifest
        _check_files(info)
    return info


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError("does not exist") from None
    if not is_folder:
        raise CheckpointError("is no folder")
    manifest: dict[str, Any] = read_json(path_inside(path, MANIFEST))
    whole = (
        isinstance(manifest, dict) and sealed(manifest).encode() == (path / MANIFEST).read_bytes()
    )
    if not whole or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{MANIFEST} was changed after it was written")
    if manifest.get("version") != VERSION:
        version = str(manifest.get("version"))[:20]
        raise Unreadable(f"has version {version} of the format; this program reads {VERSION}")
    check_schema(manifest, MANIFEST_SCHEMA, MANIFEST)
    return manifest


def _check_files(info: CheckpointInfo) -> None:
    """Check that each file of the manifest is there and has its size."""
    for name, fact in info.files.items():
        size = path_inside(info.path, name).lstat().st_size
        if size != fact["bytes"]:
            raise CheckpointError(f"{name} has {size} bytes instead of {fact['bytes']}")


def verify(info: CheckpointInfo, agreement: Agreement | None = None) -> CheckpointInfo:
    """Read every byte, and hold the tensors to the model that state.json lists.

    Args:
        agreement: of the ranks that do this together, each with some of the files, and know the
            same afterwards.
    """
    rank, world = (agreement.rank, agreement.world_size) if agreement else (0, 1)
    if agreement:
        [info, *_] = agreement.gather(
            info
        )  # what the main process saw: another rank may look a moment later
    if info.problem:
        return info
    _check_bytes(info, rank, world)
    if agreement:
        found = agreement.gather(info)
        info = min(found, key=lambda one: (not one.broken, not one.problem))  # damage counts first
        if info.broken and (blind := found.index(info)):
            info = _seen_by_main(info, agreement, blind)
    if not info.problem and rank == 0:
        with info.checking():
            contents = Contents.of(info.path, info.files)
            if contents.state["step"] != info.step:
                raise CheckpointError(f"{STATE} is that of step {contents.state['step']}")
            contents.check_model()
    return agreement.gather(info)[0] if agreement else info


def _check_bytes(info: CheckpointInfo, part: int, parts: int) -> None:
    """Look for all files in their sizes, and read every byte of one part of them."""
    names = sorted(info.files)
    with info.checking():
        for name in names:
            if path_inside(info.path, name).lstat().st_size != info.files[name]["bytes"]:
                raise CheckpointError(f"{name} was changed after it was written")
        for name in names[part::parts]:
            if hash_file(info.path / name) != info.files[name]["xxh3"]:
                raise CheckpointError(f"{name} was changed after it was written")


def _seen_by_main(info: CheckpointInfo, agreement: Agreement, blind: int) -> CheckpointInfo:
    """Have the main process read what is broken for another rank. What is whole there is not
    damaged.

    A network file system may show a rank an old listing, and a node may have a disk of its own
    under this name.
    """
    own = replace(info, problem="", broken=False)
    if agreement.rank == 0:
        _check_bytes(own, blind, agreement.world_size)
    again: CheckpointInfo = agreement.gather(own)[0]
    if again.problem:
        return again
    problem = (
        f"cannot be read on rank {blind}: {info.problem} there, and whole for the main process"
    )
    return replace(info, problem=problem, broken=False)


# -- which one to go on from
# ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Start:
    """The place where a run begins.

    Args:
        found: the checkpoint to go on from; None starts anew.
        passed_over: newer ones that are damaged.
        continues: whether ``output_dir`` may be a used one, which this run goes on with.
    """

    found: CheckpointInfo | None = None
    passed_over: tuple[CheckpointInfo, ...] = ()
    continues: bool = False

    @property
    def step(self) -> int:
        return int(self.found.manifest["step"]) if self.found else 0

    @property
    def samples(self) -> int:
        return int(self.found.manifest["samples"]) if self.found else 0


def find_start(resume: str, folder: Path, agreement: Agreement, *, origin: Origin) -> Start:
    """Choose the checkpoint that ``resume`` asks for, once every byte of it was read. Collective.

    Args:
        resume: ``none``, ``auto`` (the newest complete checkpoint in ``folder``, if there is one)
            or a path.
        folder: of the run's own checkpoints.
        origin: of ``resume``, for messages.

    Raises:
        ConfigError: the path names no checkpoint, or one that newer ones follow.
        CheckpointError: the checkpoint of the path is damaged (there is no falling back); or all
            that ``auto`` found are; or one cannot be read, or not by this program, which does not
            mean that it is damaged.
    """
    if resume == "none":
        return Start()
    own = _from_main(agreement, lambda: named(folder))
    if resume != "auto":
        return _start_at(Path(resume), folder, own, agreement, origin)
    damaged: list[CheckpointInfo] = []
    for path in own:
        info = verify(_from_main(agreement, partial(inspect, path)), agreement)
        if not info.problem:
            return Start(found=info, passed_over=tuple(damaged), continues=True)
        if not info.broken:
            raise CheckpointError(
                f"{info.path}: {info.problem}; resume: auto passes over what is damaged only; start again once it "
                "can be read, or, to go on from an older checkpoint, name it with resume, and give another output_dir"
            )
        damaged.append(info)
    if damaged:
        damages = "; ".join(f"{one.path.name}: {one.problem}" for one in damaged)
        raise CheckpointError(
            f"{folder}: all checkpoints are damaged ({damages}); to start anew give another output_dir, or --overwrite "
            "without resume, which deletes this one"
        )
    return Start(continues=True)


def _start_at(
    path: Path, folder: Path, own: list[Path], agreement: Agreement, origin: Origin
) -> Start:
    def wrong(rule: str) -> ConfigError:
        return ConfigError(Problem(origin=origin.named("resume"), value=str(path), rule=rule))

    def inspect_path() -> CheckpointInfo:
        for inside in () if os.path.lexists(path / MANIFEST) else (path, path / "checkpoints"):
            if names := ", ".join(one.name for one in named(inside)):
                raise wrong(
                    f"holds checkpoints and is none; name one of {names} in {inside}, or use resume: auto"
                )
        return inspect(path)

    info = verify(_from_main(agreement, inspect_path), agreement)
    if info.problem:
        instead = (
            "; resume: auto takes the newest complete checkpoint instead" if info.broken else ""
        )
        raise CheckpointError(f"{path}: {info.problem}{instead}")
    continues = path.resolve().parent == folder.resolve()
    newer = [one.name for one in own if step_of(one) > info.step]
    if continues and newer:
        raise wrong(
            f"{folder} goes on to {newer[0]}; give another output_dir to branch off, or delete the newer ones"
        )
    return Start(found=info, continues=continues)


def _from_main(agreement: Agreement, work: Callable[[], T]) -> T:
    """Do ``work`` on the main process; its result, or its error, is everybody's."""
    results: list[T] = []
    agreement.run_on_main(lambda: results.append(work()))
    return agreement.gather(results)[0][0]  # type: ignore[no-any-return]
