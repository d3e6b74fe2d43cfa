"""Read the output folder of a run back."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ..config.documents import read_document
from ..config.train_config import DEFAULTS
from ..errors import Origin, usage_error
from ..reporting.say import say

_OBJECT: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training that ran.

    Args:
        path: the folder, as the user typed the path.
        plan: the values of plan.json and of the training config.
        rows, summary: of metrics.jsonl and summary.json. Empty if a file is missing.
        error: of a training that failed in a trial. The other values are then empty.
    """

    name: str
    path: str
    plan: Mapping[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    def curve(self, key: str) -> dict[int, float]:
        """Return the values of ``key`` by step. NaN for a value that was not finite."""
        rows = [row for row in self.rows if key in row]
        return {row["step"]: math.nan if row[key] is None else row[key] for row in rows}


def read_run(path: str | Path) -> Run:
    """Read the folder of a run. ConfigError: the folder is none, or a file is damaged."""
    folder = Path(path)
    rows, summary = [], {}
    try:
        file = folder / "plan.json"
        plan = _OBJECT.validate_json(file.read_bytes())
        config = read_document(folder / "config.yaml").data
        file = folder / "metrics.jsonl"
        if file.exists():
            # Without a last row that a killed run did not write to the end.
            *lines, _ = file.read_bytes().split(b"\n")
            rows = [*map(_OBJECT.validate_json, lines)]
        file = folder / "summary.json"
        if file.exists():
            summary = _OBJECT.validate_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise usage_error("", str(path), "is no folder of a run: it has no plan.json") from None
    except (OSError, ValueError) as error:
        rule = f"the file is damaged: {' '.join(str(error).split())[:200]}"
        raise Origin(str(file)).error(rule) from None

    # Without the key all runs of a task have the same name.
    name = str(plan["run_name"]) if config.get("run_name") else folder.resolve().name
    settings = {**DEFAULTS, **config, **plan}
    return Run(name=name, path=str(path), plan=settings, rows=rows, summary=summary)


def import_code_of(run: Run) -> None:
    """Let modules be imported from the folder of the script that trained a run."""
    code = run.plan.get("task_folder")
    if code and code not in sys.path:
        # The code in the folder is a program, and plan.json may come from anybody.
        say(f"note: plan.json of the run names {code}: code is imported from it")
        sys.path.append(code)
