"""Read the output folder of a run back."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt

from ..config.documents import read_document
from ..config.train_config import DEFAULTS
from ..errors import Origin, usage_error
from ..reporting.say import say
from ..text import in_one_line


class Run(NamedTuple):
    """A training that ran.

    Args:
        path: the folder, as the user typed the path.
        plan: the values of plan.json and of the training config.
        rows, summary: of metrics.jsonl and summary.json. Empty if a file is missing.
        error: of a training that failed in a trial. The other values are then empty.
    """

    name: str
    path: str
    plan: Mapping[str, Any] = {}
    rows: Sequence[Mapping[str, Any]] = ()
    summary: Mapping[str, Any] = {}
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
    plans = _read(folder / "plan.json", _Plan)
    if not plans:
        raise usage_error("", str(path), "is no folder of a run: it has no plan.json")
    plan, config = plans[0], read_document(folder / "config.yaml").data

    # Without the key all runs of a task have the same name.
    name = plan["run_name"] if config.get("run_name") else folder.resolve().name
    return Run(
        name=name,
        path=str(path),
        plan={**DEFAULTS, **config, **plan},
        rows=_read(folder / "metrics.jsonl", _Row),
        summary=dict(*_read(folder / "summary.json", _Summary)),
    )


def _read(file: Path, form: type[_File]) -> list[dict[str, Any]]:
    """Return the object of a file, or the objects of the lines. Empty if the file is missing."""
    try:
        parts = [file.read_bytes()]
        if file.suffix == ".jsonl":
            *parts, _ = parts[0].split(b"\n")  # without a row that a killed run did not end
        return [form.model_validate_json(part).model_dump() for part in parts]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, ValueError) as error:
        rule = f"the file is damaged: {in_one_line(error)[:200]}"
        raise Origin(str(file)).error(rule) from None


def import_code_of(run: Run) -> None:
    """Let modules be imported from the folder of the script that trained a run."""
    code = run.plan.get("task_folder")
    if code and code not in sys.path:
        # The code in the folder is a program, and plan.json may come from anybody.
        say(f"note: plan.json of the run names {code}: code is imported from it")
        sys.path.append(code)
