"""The folder of a run, and its files.

config.yaml     the training config, resolved
plan.json       what runs: strategy, world size, precision, batch, learning rate, versions
metrics.jsonl   one JSON object a logged step; evaluation rows carry eval/... keys
summary.json    where the time went, memory of every rank, the last evaluation
log.txt         the plain lines that the terminal showed
profile/        what profile_steps asked for; wandb/, tracking/, tracking.json: the trackers' files
model/          the exported model; best/ the best one; step-N/ those of save_every
"""

from __future__ import annotations

import json
import math
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

    def claim(self, control: Control, *, overwrite: bool, home: str) -> None:
        """Make the folder. A used one is an error, or emptied of a former run's files with ``overwrite``."""

        def make() -> None:
            if self.path.exists() and not self.path.is_dir():
                rule = "is a file; give a folder"
                raise ConfigError(Problem(where=home, key="output_dir", value=str(self.path), rule=rule))
            if self.path.is_dir() and any(self.path.iterdir()):
                if not overwrite:
                    rule = "holds files already; give a new folder, or --overwrite to replace a former run"
                    raise ConfigError(Problem(where=home, key="output_dir", value=str(self.path), rule=rule))
                self._empty(home)
            self.path.mkdir(parents=True, exist_ok=True)

        control.on_main(make)

    def _empty(self, home: str) -> None:
        found = list(self.path.iterdir())
        foreign = sorted(entry.name for entry in found if not _is_ours(entry))
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

    def line(self, text: str) -> None:
        """Append to log.txt."""
        self._append("log.txt", text)

    def _append(self, name: str, text: str) -> None:
        if self.main:
            with open(self.path / name, "a", encoding="utf-8") as file:
                file.write(text + "\n")


_TRACKED = ("wandb", "tracking", "tracking.json", "profile")


def _is_ours(entry: Path) -> bool:
    name = entry.name.lstrip(".").removesuffix(".part").removesuffix(".old")
    files = ("config.yaml", "plan.json", "metrics.jsonl", "summary.json", "log.txt", "model", "best", *_TRACKED)
    return name in files or (name.startswith("step-") and name[5:].isdigit())
