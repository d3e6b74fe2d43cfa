"""Read the output folder of a run back."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt

from ..config.documents import read_document
from ..config.train_config import DEFAULTS
from ..errors import Origin, usage_error
from ..reporting.say import say
from ..text import in_one_line


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
        return {
            row["step"]: math.nan if row[key] is None else row[key]
            for row in self.rows
            if key in row
        }


class _File(BaseModel):
    """A JSON object. The types of the fields are checked, and other keys are kept."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Plan(_File):
    strategy: str
    world_size: NonNegativeInt
    run_name: str | None = None
    precision: dict[str, str] = {}
    task_folder: str | None = None


class _Row(_File):
    __pydantic_extra__: dict[str, FiniteFloat | None]
    step: NonNegativeInt


class _Summary(_File):
    peak_memory_bytes: list[NonNegativeInt] = []
    steps: NonNegativeInt = 0
    samples: NonNegativeInt = 0


def read_run(path: str | Path) -> Run:
    """Read the folder of a run. ConfigError: the folder is none, or a file is damaged."""
    folder = Path(path)
    rows, summary = [], {}
    try:
        file = folder / "plan.json"
        plan = _Plan.model_validate_json(file.read_bytes()).model_dump()
        config = read_document(folder / "config.yaml").data
        file = folder / "metrics.jsonl"
        if file.exists():
            # Without a last row that a killed run did not write to the end.
            *lines, _ = file.read_bytes().split(b"\n")
            rows = [_Row.model_validate_json(line).model_dump() for line in lines]
        file = folder / "summary.json"
        if file.exists():
            summary = _Summary.model_validate_json(file.read_bytes()).model_dump()
    except (FileNotFoundError, NotADirectoryError):
        raise usage_error("", str(path), "is no folder of a run: it has no plan.json") from None
    except (OSError, ValueError) as error:
        rule = f"the file is damaged: {in_one_line(error)[:200]}"
        raise Origin(str(file)).error(rule) from None

    # Without the key all runs of a task have the same name.
    name = plan["run_name"] if config.get("run_name") else folder.resolve().name
    plan = {**DEFAULTS, **config, **plan}
    return Run(name=name, path=str(path), plan=plan, rows=rows, summary=summary)


def import_code_of(run: Run) -> None:
    """Let modules be imported from the folder of the script that trained a run."""
    code = run.plan.get("task_folder")
    if code and code not in sys.path:
        # The code in the folder is a program, and plan.json may come from anybody.
        say(f"note: plan.json of the run names {code}: code is imported from it")
        sys.path.append(code)
