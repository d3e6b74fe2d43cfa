"""The folder of a run, and its files.

config.yaml     the training config, resolved
plan.json       what runs: strategy, world size, precision, batch, learning rate, versions
metrics.jsonl   one JSON object a logged step; evaluation rows carry eval/... keys
summary.json    where the time went, memory of every rank, the last evaluation
log.txt         the plain lines that the terminal showed
model/          the exported model; best/ the best one
checkpoints/    step-XXXXXXXX/ to resume from
profile/        what profile_steps asked for; wandb/, tracking/, tracking.json: the trackers' files
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .control import Control
from .errors import ConfigError, Problem


class RunDirectory:
    """Writes on the main process only; every rank may call every method but ``row`` and ``line``.

    Args:
        path: the folder; parents are made.
        main: whether this is the main process.
    """

    def __init__(self, path: str, *, main: bool) -> None:
        self.path, self.main = Path(path), main

    def claim(self, control: Control, *, overwrite: bool, home: str, continues: bool = False) -> None:
        """Make the folder. A used one is an error, or emptied of a former run's files with ``overwrite``.

        Args:
            continues: a used one is gone on with, if it is that of a run.
        """

        def make() -> None:
            if self.path.exists() and not self.path.is_dir():
                rule = "is a file; give a folder"
                raise ConfigError(Problem(where=home, key="output_dir", value=str(self.path), rule=rule))
            if any(entry.is_file() for entry in self.path.rglob("*")):  # empty folders are what a refused run left
                if continues and ((self.path / "config.yaml").exists() or not self._foreign()):
                    return
                if not overwrite:
                    rule = "holds files already; give a new folder, or --overwrite to replace a former run"
                    raise ConfigError(Problem(where=home, key="output_dir", value=str(self.path), rule=rule))
                self._empty(home)
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                rule = f"cannot be made: {error.strerror}"
                raise ConfigError(Problem(where=home, key="output_dir", value=str(self.path), rule=rule)) from None

        control.on_main(make)

    def _foreign(self) -> list[str]:
        return sorted(entry.name for entry in self.path.iterdir() if not _is_ours(entry))

    def _empty(self, home: str) -> None:
        found = list(self.path.iterdir())
        foreign = self._foreign()
        if foreign:
            rule = f"holds files that no run wrote ({', '.join(foreign[:3])}); they are not deleted: give a new folder"
            raise ConfigError(Problem(where=home, key="output_dir", value=str(self.path), rule=rule))
        for entry in found:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def write(self, name: str, text: str) -> None:
        """Write a small file."""
        if self.main:
            (self.path / name).write_text(text, encoding="utf-8")

    def row(self, values: Mapping[str, Any]) -> None:
        """Append to metrics.jsonl. JSON has no NaN: such values become null."""
        clean = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        self._append("metrics.jsonl", json.dumps(clean))

    def cut_rows(self, step: int) -> None:
        """Drop the rows of metrics.jsonl after ``step``: those steps are trained again, and each has one row."""
        path = self.path / "metrics.jsonl"
        if not (self.main and path.exists()):
            return
        kept = [line for line in path.read_bytes().splitlines(keepends=True) if _step_of(line) <= step]
        part = path.with_name(".metrics.jsonl.part")
        part.write_bytes(b"".join(kept))
        os.replace(part, path)

    def line(self, text: str) -> None:
        """Append to log.txt."""
        self._append("log.txt", text)

    def _append(self, name: str, text: str) -> None:
        if self.main:
            with open(self.path / name, "a", encoding="utf-8") as file:
                file.write(text + "\n")


def _step_of(row: bytes) -> float:
    try:
        step = json.loads(row)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf  # the last row of a killed run may be cut
    return float(step) if row.endswith(b"\n") else math.inf


_TRACKED = ("wandb", "tracking", "tracking.json", "profile")


def _is_ours(entry: Path) -> bool:
    name = entry.name.lstrip(".").removesuffix(".part").removesuffix(".old")
    files = ("config.yaml", "plan.json", "metrics.jsonl", "summary.json", "log.txt", "model", "best", "checkpoints")
    return name in (*files, *_TRACKED)
