"""The folder of a run, and its files.

config.yaml     the training config, resolved
plan.json       what runs: strategy, world size, precision, batch, learning rate, versions
metrics.jsonl   one JSON object a logged step; evaluation rows carry eval/... keys
summary.json    where the time went, memory of every rank, the last evaluation
attempts.json   how long each attempt of the run took, and from which step to which
log.txt         the plain lines that the terminal showed
model/          the exported model; best/ the best one
checkpoints/    step-XXXXXXXX/ to resume from
profile/        what profile_steps asked for; wandb/, tracking/, tracking.json: the trackers' files
.lock           locked by the run that writes here
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..checkpoint.disk import part_of, publish
from ..checkpoint.export import exported_file
from ..checkpoint.store import is_ours
from ..checkpoint.untrusted import read_json
from ..distributed.agreement import Agreement
from ..errors import DEFAULT, ConfigError, Origin, Problem, writing
from .lock import LOCK, FolderLock, Locked

CHECKPOINTS = "checkpoints"
_FILES = ("config.yaml", "plan.json", "metrics.jsonl", "summary.json", "attempts.json", "log.txt")
_MODELS = ("model", "best")
_TRACKED = ("wandb", "tracking", "tracking.json", "profile")


class RunDirectory:
    """Writes on the main process only; every rank may call every method but ``row`` and ``line``.

    Args:
        path: the folder; parents are made.
        main: whether this is the main process.
        origin: of ``output_dir``, for messages.

    Raises:
        CheckpointError: from what writes: the disk is full, or not to be written.
    """

    def __init__(self, path: str, *, main: bool, origin: Origin = DEFAULT) -> None:
        self.path, self.main, self.origin = Path(path), main, origin.named("output_dir")
        self._lock: FolderLock | None = None

    @property
    def notices(self) -> list[str]:
        """Return what is worth knowing about the folder."""
        return [self._lock.notice] if self._lock is not None and self._lock.notice else []

    @contextlib.contextmanager
    def locked(self, agreement: Agreement) -> Iterator[None]:
        """Make the folder and lock it, before anything in it is read or changed. Collective.

        Raises:
            ConfigError: another run has the lock, or the folder cannot be made.
        """

        def take() -> None:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                self._lock = FolderLock(self.path)
            except FileExistsError:
                raise self._wrong("is a file; give a folder") from None
            except OSError as error:
                raise self._wrong(f"cannot be made: {error.strerror}") from None
            except Locked as holder:
                rule = f"another run is writing there ({holder}); end it, or give another folder"
                raise self._wrong(rule) from None

        agreement.run_on_main(take)
        try:
            yield
        except BaseException:
            self.release(undo=True)
            raise

    def release(self, *, undo: bool = False) -> None:
        """Let another run have the folder; with ``undo`` as if this one had never looked at it."""
        if self._lock is not None:
            self._lock.release(undo=undo)

    def claim(self, agreement: Agreement, *, overwrite: bool, continues: bool = False) -> None:
        """Take the locked folder for this run. A used one is an error, or emptied of a former run's
        files.

        Args:
            overwrite: empty it.
            continues: a used one is gone on with, if it is that of a run.

        Raises:
            ConfigError: the folder is used; with ``overwrite``, by others than a run.
        """

        def make() -> None:
            entries = [entry for entry in self.path.iterdir() if entry.name != LOCK]
            inside = (
                one
                for entry in entries
                for one in (entry.rglob("*") if entry.is_dir() else [entry])
            )
            if not any(
                one.is_file() for one in inside
            ):  # empty folders are what a refused run left
                return
            if continues and self._is_of_a_run():
                links = [
                    entry.name for entry in entries if entry.name in _FILES and entry.is_symlink()
                ]
                if links:
                    raise self._wrong(
                        f"holds {links[0]} as a link, through which another file would be changed"
                    )
                return
            if not overwrite:
                rule = (
                    "holds files already; give a new folder, or --overwrite to replace a former run"
                )
                raise self._wrong(rule)
            self._empty(entries)

        agreement.run_on_main(make)

    def _is_of_a_run(self) -> bool:
        """Tell whether a run wrote here: the lock that it held tells, or its plan."""
        try:
            plan = read_json(self.path / "plan.json")
        except (OSError, ValueError):
            plan = None
        ours = isinstance(plan, dict) and {"strategy", "world_size", "versions"} <= plan.keys()
        return ours or (self._lock is not None and self._lock.was_ours)

    def _empty(self, entries: list[Path]) -> None:
        """Delete what a run wrote, once it is known that there is nothing else."""
        if self._is_of_a_run():
            foreign = sorted(name for entry in entries for name in _foreign(entry))
        else:
            foreign = sorted(entry.name for entry in entries)
        if foreign:
            rule = f"holds files that no run wrote ({', '.join(foreign[:3])}); they are not deleted: give a new folder"
            raise self._wrong(rule)
        try:
            for entry in entries:
                # A link to another disk stays, and is emptied.
                linked = entry.name == CHECKPOINTS and entry.is_symlink() and entry.is_dir()
                for one in list(entry.iterdir()) if linked else [entry]:
                    shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
        except OSError as error:
            raise self._wrong(f"cannot be emptied: {error}") from None

    def _wrong(self, rule: str) -> ConfigError:
        return ConfigError(Problem(origin=self.origin, value=str(self.path), rule=rule))

    def ended_at(self) -> int | None:
        """Return the step at which a run ended here, with its model written; None if none has."""
        try:
            # Not by ``read_json``: earlier versions wrote NaN there, for a metric without a value.
            steps = json.loads((self.path / "summary.json").read_bytes())["steps"]
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None
        return steps if isinstance(steps, int) and exported_file(self.path / "model") else None

    def write(self, name: str, text: str) -> None:
        """Write a small file."""
        self._write(name, "wb", text)

    def write_json(self, name: str, value: object) -> None:
        """Write a small file of JSON; what JSON does not hold becomes text, and a number that is
        not finite null.
        """
        self.write(
            name, json.dumps(_with_nulls(value), indent=2, default=str, allow_nan=False) + "\n"
        )

    def row(self, values: Mapping[str, Any]) -> None:
        """Append to metrics.jsonl, where a number that is not finite becomes null."""
        self._write("metrics.jsonl", "ab", json.dumps(_with_nulls(values), allow_nan=False) + "\n")

    def cut_rows(self, step: int) -> None:
        """Drop the rows of metrics.jsonl after ``step``: those steps are trained again, and each
        has one row.
        """
        path = self.path / "metrics.jsonl"
        if not (self.main and path.exists()):
            return
        kept = [
            line for line in path.read_bytes().splitlines(keepends=True) if _step_of(line) <= step
        ]
        part_of(path).unlink(missing_ok=True)
        part_of(path).write_bytes(b"".join(kept))
        publish(path)

    def line(self, text: str, *, from_any: bool = False) -> None:
        """Append to log.txt; with ``from_any`` from whichever rank calls it."""
        self._write("log.txt", "ab", text + "\n", from_any=from_any)

    def _write(self, name: str, mode: str, text: str, *, from_any: bool = False) -> None:
        if self.main or from_any:
            with writing(self.path / name) as path, open(path, mode) as file:
                file.write(text.encode(errors="backslashreplace"))  # odd path names


def _with_nulls(value: Any) -> Any:
    """Return a value with null for its numbers that are not finite: JSON has none of them."""
    if isinstance(value, Mapping):
        return {key: _with_nulls(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_nulls(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _step_of(row: bytes) -> float:
    try:
        step = json.loads(row)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf  # the last row of a killed run may be cut
    return float(step) if row.endswith(b"\n") else math.inf


def _foreign(entry: Path) -> list[str]:
    """Name what of an entry in a run's folder no run wrote."""
    hidden = entry.name.startswith(".")
    name = entry.name[1:].removesuffix(".part").removesuffix(".old") if hidden else entry.name
    if name in _MODELS and not hidden:
        return (
            [] if exported_file(entry) or (entry.is_dir() and not any(entry.iterdir())) else [name]
        )
    if name == CHECKPOINTS and entry.is_dir():
        return [f"{name}/{one.name}" for one in entry.iterdir() if not is_ours(one)]
    return [] if name in (*_FILES, *_MODELS, *_TRACKED) else [entry.name]
