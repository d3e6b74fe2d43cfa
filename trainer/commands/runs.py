"""Read finished runs back: our own run directories, W&B's offline folders by its own tool, W&B
online by its API.
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
        name: short, for people; the folder's name, or W&B's.
        plan: what ran, as in plan.json, over the settings of the training config.
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
        """Return the value of ``key`` at each step that logged it; None where it was not a number."""
        return {int(row["step"]): row[key] for row in self.rows if key in row}

    @property
    def evaluation(self) -> dict[str, float]:
        """Return the last value of each ``eval/...`` metric."""
        return {
            key: value for row in self.rows for key, value in row.items() if key.startswith("eval/")
        }


def read_run(path: str | Path) -> Run:
    """Read an output directory, a W&B folder (``offline-run-*``, a ``.wandb`` file), or
    ``wandb:ENTITY/PROJECT/RUN``.

    Raises:
        ConfigError: it is neither, or cannot be read.
    """
    folder = Path(path)
    if str(path).startswith(ONLINE):
        return _read_wandb_run(str(path))
    if (folder / "plan.json").is_file():
        return _read_folder(folder)
    if folder.suffix == ".wandb" or any(folder.glob("*.wandb")):
        return _read_wandb_folder(folder)
    raise _unreadable(
        path, "neither an output directory of a run (no plan.json) nor a W&B run (no .wandb file)"
    )


def _read_folder(folder: Path) -> Run:
    metrics, summary = folder / "metrics.jsonl", folder / "summary.json"
    try:
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        ended = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else {}
        text = metrics.read_text(encoding="utf-8") if metrics.exists() else ""
        complete = text[: text.rfind("\n") + 1]  # the last row of a killed run is cut
        rows = [json.loads(line) for line in complete.splitlines()]
    except ValueError as error:
        raise _unreadable(folder, f"a file of the run is damaged: {error}") from None
    # A run of an older version does not say all settings: those had today's defaults.
    settings = {**DEFAULTS, **read_document(folder / "config.yaml", what="training config").data}
    return Run(
        name=folder.resolve().name,
        path=str(folder),
        plan=hidden({**settings, **plan}),
        rows=rows,
        summary=ended,
    )


def _read_wandb_folder(path: Path) -> Run:
    run = json.loads(_wandb_inspect("--summary", "--json", str(path)))
    records = map(json.loads, _wandb_inspect("--json", str(path)).splitlines())
    rows = [record["history"]["item"] for record in records if record.get("type") == "history"]
    return _from_tracker(
        run.get("name") or path.name, str(path), run.get("config", {}), rows, run.get("summary", {})
    )


def _read_wandb_run(path: str) -> Run:
    try:
        import wandb
    except ImportError:
        raise _unreadable(path, "reading a W&B run needs its package: pip install wandb") from None
    try:
        run = wandb.Api(timeout=30).run(path.removeprefix(ONLINE))
        rows = [{k: v for k, v in row.items() if v is not None} for row in run.scan_history()]
        return _from_tracker(run.name or path, path, run.config, rows, dict(run.summary))
    except (wandb.errors.Error, ValueError) as error:
        raise _unreadable(path, f"W&B: {error}") from None


def _from_tracker(
    name: str,
    path: str,
    config: Mapping[str, Any],
    rows: list[dict[str, Any]],
    summary: Mapping[str, Any],
) -> Run:
    """Turn what ``callbacks/tracking.py`` logged back: rows as in metrics.jsonl, with ``train/``
    before a name.
    """
    rows = [
        {key.removeprefix("train/"): value for key, value in row.items()}
        for row in rows
        if "step" in row
    ]
    seconds = {
        key.rpartition("/")[2]: value
        for key, value in summary.items()
        if key.startswith("summary/seconds/")
    }
    ended: dict[str, Any] = {"seconds": seconds} if seconds else {}
    if "summary/peak_memory_bytes" in summary:
        ended["peak_memory_bytes"] = [summary["summary/peak_memory_bytes"]]
    return Run(name=name, path=path, plan={**DEFAULTS, **config}, rows=rows, summary=ended)


def _wandb_inspect(*words: str) -> str:
    """Run W&B's own reader of its files, and return what it prints."""
    beside = Path(sys.executable).with_name("wandb")
    program = str(beside) if beside.exists() else shutil.which("wandb")
    if program is None:
        raise _unreadable(words[-1], "reading a W&B run needs its own tool: pip install wandb")
    done = subprocess.run(
        [program, "leet", "inspect", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise _unreadable(
            words[-1], f"wandb leet inspect: {done.stderr.strip() or done.stdout.strip()}"
        )
    return done.stdout


def _unreadable(path: str | Path, rule: str) -> ConfigError:
    return ConfigError(Problem(origin=Origin(str(path)), rule=rule))
