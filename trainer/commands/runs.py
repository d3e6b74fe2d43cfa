"""Read finished runs back: from their output folders, or from W&B.

W&B's offline folders are read by its own tool, runs on its server by its API.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config.documents import read_document
from ..config.train_config import DEFAULTS
from ..errors import ConfigError, Origin, Problem
from ..text import hidden

ONLINE = "wandb:"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training that ran.

    Args:
        name: for people: ``run_name`` where it was set, else the folder's name; or W&B's.
        path: what the user typed for it.
        plan: what ran, as in plan.json, together with the settings of the training config.
        rows: as in metrics.jsonl: logged steps and evaluations, by step.
        summary: as in summary.json; empty where the training did not end.
        error: why the training failed, if it did and was started from here; the rest is empty then.
    """

    name: str
    path: str
    plan: Mapping[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    def curve(self, key: str) -> dict[int, float | None]:
        """Return the value of ``key`` at each step that logged it; None where it was not finite."""
        return {int(row["step"]): row[key] for row in self.rows if key in row}

    @property
    def evaluation(self) -> dict[str, float]:
        """Return the last value of each ``eval/...`` metric."""
        last: dict[str, float] = {}
        for row in self.rows:
            for key, value in row.items():
                if key.startswith("eval/"):
                    last[key] = value

        return last


def read_run(path: str | Path) -> Run:
    """Read a finished run.

    Args:
        path: an output directory, a W&B folder (``offline-run-*``), a ``.wandb`` file, or
            ``wandb:ENTITY/PROJECT/RUN``.

    Raises:
        ConfigError: it is none of these, or cannot be read.
    """
    if str(path).startswith(ONLINE):
        return _read_wandb_online(str(path))
    folder = Path(path)
    if (folder / "plan.json").is_file():
        return _read_folder(folder)
    if folder.suffix == ".wandb" or any(folder.glob("*.wandb")):
        return _read_wandb_offline(folder)

    raise _unreadable(
        path, "neither an output directory of a run (no plan.json) nor a W&B run (no .wandb file)"
    )


def _read_folder(folder: Path) -> Run:
    """Read an output directory."""
    try:
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        summary = {}
        if (folder / "summary.json").exists():
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        rows = _read_rows(folder / "metrics.jsonl")
    except ValueError as error:
        raise _unreadable(folder, f"a file of the run is damaged: {error}") from None

    # A run of an older version lacks some settings: those had today's defaults.
    config = read_document(folder / "config.yaml", what="training config").data
    name = folder.resolve().name
    if config.get("run_name"):  # without the key all runs of a task are called alike
        name = str(plan.get("run_name", name))
    return Run(
        name=name,
        path=str(folder),
        plan=hidden({**DEFAULTS, **config, **plan}),
        rows=rows,
        summary=summary,
    )


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl, without the last row if a killed run did not write it to its end."""
    if not path.exists():
        return []

    text = path.read_text(encoding="utf-8")
    complete = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in complete.splitlines()]


def _read_wandb_offline(path: Path) -> Run:
    """Read a W&B folder or ``.wandb`` file."""
    run = json.loads(_inspect_wandb("--summary", "--json", str(path)))
    rows = []
    for line in _inspect_wandb("--json", str(path)).splitlines():
        record = json.loads(line)
        if record.get("type") == "history":
            rows.append(record["history"]["item"])

    name = run.get("name") or path.name
    return _from_wandb(name, str(path), run.get("config", {}), rows, run.get("summary", {}))


def _read_wandb_online(path: str) -> Run:
    """Read ``wandb:ENTITY/PROJECT/RUN`` from W&B's server."""
    try:
        import wandb
    except ImportError:
        raise _unreadable(path, "reading a W&B run needs its package: pip install wandb") from None

    try:
        run = wandb.Api(timeout=30).run(path.removeprefix(ONLINE))
        rows = []
        for row in run.scan_history():
            # W&B fills each row with None for the metrics of other rows.
            rows.append({key: value for key, value in row.items() if value is not None})
        return _from_wandb(run.name or path, path, run.config, rows, dict(run.summary))
    except (wandb.errors.Error, ValueError) as error:
        raise _unreadable(path, f"W&B: {error}") from None


def _from_wandb(
    name: str,
    path: str,
    config: Mapping[str, Any],
    rows: list[dict[str, Any]],
    summary: Mapping[str, Any],
) -> Run:
    """Undo how ``callbacks/tracking.py`` names what it logs.

    It writes a row as in metrics.jsonl, but with ``train/`` before a name.
    """
    renamed = []
    for row in rows:
        if "step" in row:
            renamed.append({key.removeprefix("train/"): value for key, value in row.items()})

    found: dict[str, Any] = {}
    seconds = {}
    for key, value in summary.items():
        if key.startswith("summary/seconds/"):
            seconds[key.rpartition("/")[2]] = value
    if seconds:
        found["seconds"] = seconds
    if "summary/peak_memory_bytes" in summary:
        found["peak_memory_bytes"] = [summary["summary/peak_memory_bytes"]]

    return Run(name=name, path=path, plan={**DEFAULTS, **config}, rows=renamed, summary=found)


def _inspect_wandb(*words: str) -> str:
    """Run W&B's own reader of its files, and return what it prints."""
    beside_python = Path(sys.executable).with_name("wandb")
    program = str(beside_python) if beside_python.exists() else shutil.which("wandb")
    path = words[-1]
    if program is None:
        raise _unreadable(path, "reading a W&B run needs its own tool: pip install wandb")

    command = [program, "leet", "inspect", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        printed = done.stderr.strip() or done.stdout.strip()
        raise _unreadable(path, f"wandb leet inspect: {printed}")
    return done.stdout


def _unreadable(path: str | Path, rule: str) -> ConfigError:
    return ConfigError(Problem(origin=Origin(str(path)), rule=rule))
