"""The checkpoints on a disk, and whether each is as its manifest says.

Each reader of a checkpoint begins with ``inspect``, which trusts neither the manifest nor the
files. ``verify`` reads every byte as well. ``docs/checkpoint_format.md`` describes the format for
other programs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..distributed.agreement import Agreement
from ..errors import CheckpointError
from .contents import Contents
from .disk import hash_file
from .forms import MANIFEST_FORM, check_form
from .store import MANIFEST, STATE, VERSION, named, sealed, step_of
from .untrusted import Unreadable, path_inside, read_json


@dataclass(kw_only=True)
class CheckpointInfo:
    """A checkpoint as it is on the disk.

    Args:
        step: by the name. -1 for another name, if the manifest cannot be read either.
        manifest: the content of manifest.json. Empty if the file cannot be read.
        problem: why the checkpoint cannot be loaded. Empty if no reason is known.
        broken: whether the files are damaged. Otherwise this program or this machine cannot read
            them now.
    """

    path: Path
    step: int
    manifest: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""
    broken: bool = False

    @property
    def files(self) -> dict[str, Mapping[str, Any]]:
        files: dict[str, Mapping[str, Any]] = self.manifest.get("files", {})
        return files

    @property
    def bytes(self) -> int:
        return sum(int(fact["bytes"]) for fact in self.files.values())

    def open(self) -> Contents:
        """Open a checkpoint that was verified.

        Raises:
            CheckpointError: the checkpoint has a problem, or cannot be read any more.
        """
        if not self.problem:
            try:
                return Contents.of(self.path, self.files)
            except (CheckpointError, OSError) as error:
                self.record(error)
        raise CheckpointError(f"{self.path}: {self.problem}")

    def record(self, error: CheckpointError | OSError) -> None:
        """Note an error as the problem of this checkpoint."""
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            self.problem = f"{os.path.relpath(error.filename, self.path)} is missing"
            self.broken = True
        elif isinstance(error, OSError):
            self.problem = f"cannot be read: {error}"
        else:
            self.problem = str(error)
            self.broken = not isinstance(error, Unreadable)


def listing(folder: Path) -> list[CheckpointInfo]:
    """Inspect the checkpoints in a folder, the newest first.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    return [inspect(path) for path in named(folder)]


def inspect(path: Path) -> CheckpointInfo:
    """Read the manifest of a checkpoint, and check the sizes of its files."""
    info = CheckpointInfo(path=path, step=step_of(path))
    try:
        manifest = _read_manifest(path)
        if info.step not in (-1, manifest["step"]):
            raise CheckpointError(f"{MANIFEST} is that of step {manifest['step']}")
        info.step = manifest["step"]
        info.manifest = manifest
        _check_sizes(info)
    except (CheckpointError, OSError) as error:
        info.record(error)
    return info


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path_inside(path, MANIFEST)
    manifest: dict[str, Any] = read_json(file)
    text = file.read_bytes()
    if not isinstance(manifest, dict) or sealed(manifest).encode() != text:
        raise CheckpointError(f"{MANIFEST} was changed after it was written")
    version = manifest.get("version")
    if version != VERSION:
        raise Unreadable(f"has version {version!s:.20} of the format; this program reads {VERSION}")
    check_form(text, MANIFEST_FORM, MANIFEST)
    return manifest


def _check_sizes(info: CheckpointInfo) -> None:
    """Check that each file of the manifest is there, with the size in the manifest."""
    for name, fact in info.files.items():
        size = path_inside(info.path, name).lstat().st_size
        if size != fact["bytes"]:
            raise CheckpointError(f"{name} has {size} bytes instead of {fact['bytes']}")


def verify(info: CheckpointInfo, part: int = 0, parts: int = 1) -> CheckpointInfo:
    """Read every byte, and check that the tensors are those of the model that state.json lists.

    Args:
        info: of the checkpoint. A problem that is found is noted there.
        part, parts: only every ``parts``-th file is hashed, from file ``part`` on.
    """
    if info.problem:
        return info
    try:
        _check_sizes(info)  # each rank looks for all files, and reads some
        for name in sorted(info.files)[part::parts]:
            if hash_file(info.path / name) != info.files[name]["xxh3"]:
                raise CheckpointError(f"{name} was changed after it was written")

        contents = Contents.of(info.path, info.files)
        if contents.state["step"] != info.step:
            raise CheckpointError(f"{STATE} is that of step {contents.state['step']}")
        contents.check_model()
    except (CheckpointError, OSError) as error:
        info.record(error)
    return info


def verify_together(path: Path, agreement: Agreement) -> CheckpointInfo:
    """Inspect and verify a checkpoint, each rank some of the files. The result is the same on all.

    Collective: call on every rank.
    """
    info: CheckpointInfo = agreement.of_main(inspect(path))
    found = verify(replace(info), agreement.rank, agreement.world_size)
    problems = agreement.gather(found.problem)
    if agreement.rank == 0 and any(problems):
        # A network file system may show a rank an old listing, and a node may have another disk
        # under this name: only files that the main process cannot read either are damaged.
        verify(info)
        if not info.problem:
            problem = next(filter(None, problems))
            info.problem = (
                f"cannot be read on rank {problems.index(problem)}: {problem} there, and whole for "
                "the main process"
            )
    return agreement.of_main(info)  # type: ignore[no-any-return]
