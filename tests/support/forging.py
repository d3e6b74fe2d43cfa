"""Checkpoints that a stranger made up, and whatever reads a checkpoint."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash
from one_process import fit, reseal
from resuming import Odd

from trainer import TrainerError
from trainer.checkpoint import discover
from trainer.commands import cli
from trainer.reporting.lock import LOCK

RANK = "rank-00000.safetensors"
Forge = Callable[[Path], None]


class Noted(Odd):
    def save_extras(self, directory: Path) -> None:
        (directory / "words").mkdir()
        (directory / "words" / "note.txt").write_text("beside the model")


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Each file below a folder with its content, and links and pipes as what they are; without a
    new run's lock.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if (not path.is_dir() or path.is_symlink()) and path != folder / "new" / LOCK:
            found[str(path)] = (
                mode,
                path.read_bytes() if path.is_file() and not path.is_symlink() else b"",
            )
    return found


def readers(place: Path) -> dict[str, Callable[[], Any]]:
    """Whatever reads a checkpoint; each raises or returns something true where it does not take it."""
    theirs = place / "theirs"
    path = theirs / "step-00000002"

    def refused(work: Callable[[], Any]) -> str:
        try:
            work()
        except TrainerError as error:
            return str(error)
        return ""

    return {
        "verify": lambda: cli.main(["checkpoints", str(theirs), "--verify"]),
        "export": lambda: cli.main(["export", str(path), "--to", str(place / "stolen")]),
        "resume": lambda: refused(
            lambda: fit(place / "new", Noted(), max_steps=4, ema_decay=0.9, resume=str(path))
        ),
    }


def check_refused(place: Path, forge: Forge, *, at_a_glance: bool = True) -> None:
    """Hold every reader to refusing it; ``at_a_glance``: a listing that reads no tensors does so as
    well.
    """
    path = place / "theirs" / "step-00000002"
    forge(path)
    before = everything(place)
    for name, read in readers(place).items():
        assert read(), name
        assert everything(place) == before, f"{name} has written something"
    assert cli.main(["checkpoints", str(place / "theirs")]) == int(at_a_glance)


def listed(name: str) -> Forge:
    """The manifest lists a file by this name, and one is where it leads to, if that is below the
    stranger's folder.
    """

    def forge(path: Path) -> None:
        content = b"owned"
        if (
            path.parent in Path(os.path.normpath(path / name)).parents
            and "\0" not in name
            and len(name) < 200
        ):
            with contextlib.suppress(OSError, ValueError):
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_bytes(content)
        elif os.path.isfile(path / name):
            content = (path / name).read_bytes()
        manifest = json.loads((path / discover.MANIFEST).read_text())
        fact = {"bytes": len(content), "xxh3": xxhash.xxh3_128_hexdigest(content)}
        (path / discover.MANIFEST).write_text(
            discover.sealed({**manifest, "files": {**manifest["files"], name: fact}})
        )

    return forge


def fact(**changes: Any) -> Forge:
    def forge(path: Path) -> None:
        manifest = json.loads((path / discover.MANIFEST).read_text())
        files = {
            **manifest["files"],
            discover.STATE: {**manifest["files"][discover.STATE], **changes},
        }
        (path / discover.MANIFEST).write_text(discover.sealed({**manifest, "files": files}))

    return forge


def sealed(text: str) -> str:
    """A manifest with something in it that ``_sealed`` does not write, and the checksum of that."""
    digest = xxhash.xxh3_128_hexdigest(
        json.dumps({"x": 0}, sort_keys=True).replace("0", text).encode()
    )
    return json.dumps({"checksum": digest, "x": 0}, indent=1).replace(" 0", f" {text}") + "\n"


def stated(change: Callable[[dict[str, Any]], Any]) -> Forge:
    def forge(path: Path) -> None:
        state = json.loads((path / discover.STATE).read_text())
        (path / discover.STATE).write_text(json.dumps(change(state) or state))
        reseal(path)

    return forge


def headed(change: Callable[[dict[str, Any]], Any]) -> Forge:
    """The header of the tensors is another one, before the same bytes."""

    def forge(path: Path) -> None:
        content = (path / RANK).read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        told = json.loads(content[8:end])
        text = json.dumps(change(told) or told).encode()
        (path / RANK).write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
        reseal(path)

    return forge


def entry(**changes: Any) -> Forge:
    return headed(lambda told: told["parameter/middle.weight/0"].update(changes))


def renamed(name: str) -> Forge:
    return headed(lambda told: told.update({name: told.pop("parameter/middle.weight/0")}))
