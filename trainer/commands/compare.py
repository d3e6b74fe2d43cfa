"""``trainer compare RUNS...``: curves, speed and memory of runs beside each other.

Runs with equal settings form a group. The curves of a group are compared with that of the group's
first run. The settings of the other groups are compared with those of the first group.
"""

from __future__ import annotations

import json
import sys
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any

from ..checkpoint.compatibility import differences
from ..config.fingerprint import fingerprint
from ..config.paths import LocalPath
from ..errors import usage_error
from ..reporting.directory import json_text
from ..reporting.speed import steady_speed
from ..text import columns, metrics_text, printable, size
from .curves import bounds_of, gaps_of, judge
from .finished_runs import Run, read_run
from .page import write_page
from .usage import only_folders


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    json: Annotated[LocalPath | None, "FILE with the same as JSON"] = None
    page: Annotated[LocalPath | None, "FILE with the curves, as HTML"] = None


def run(options: Options, settings: Sequence[str], words: Sequence[str]) -> int:
    """Print the table, and return 0. ConfigError: a run cannot be read, or logged no step."""
    runs = list(map(read_run, only_folders(settings, words, most=sys.maxsize)))
    if len({run.name for run in runs}) < len(runs):
        runs = [run._replace(name=run.path) for run in runs]
    report = make_report(runs)
    text = as_table(report)
    if options.json:
        Path(options.json).write_text(json_text(report))
    if options.page:
        write_page(Path(options.page), text, runs)
    print(text)
    return 0


def make_report(runs: Sequence[Run]) -> dict[str, Any]:
    """Collect ``runs``, a mapping for each, and ``notes``, the lines below the table."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        if run.curve("loss"):
            settings = json.dumps(fingerprint(run.plan), sort_keys=True)
            groups.setdefault(settings, []).append(run)
    if not groups:
        raise usage_error("", ", ".join(run.path for run in runs), "no step was logged")

    notes = []
    usual, *_ = map(json.loads, groups)
    for settings, (first, *others) in groups.items():
        notes += [f"{first.name}: {line}" for line in differences(usual, json.loads(settings))]
        for run in others:
            gaps = gaps_of(run, first, "loss")
            if gaps:
                word, text = judge({"loss": gaps}, bounds_of(first.plan))
                notes.append(f"beside {first.name}, {run.name}: {word}: {text}")
    return {"runs": [*map(_entry, runs)], "notes": notes}


def _entry(run: Run) -> dict[str, Any]:
    """Return the values of a run. An unknown value is None."""
    last = ChainMap(*reversed(run.rows))
    return {
        "run": run.name,
        "strategy": run.plan["strategy"],
        "world": run.plan["world_size"],
        "step": last.get("step"),
        "of": run.plan.get("total_steps"),
        "samples/s": steady_speed(run.rows, "samples"),
        "memory": max(run.summary.get("peak_memory_bytes", ()), default=None),
        "loss": last.get("loss"),
        "evaluation": {
            key: value
            for key, value in last.items()
            if key.startswith("eval/") and value is not None
        },
    }


def as_table(report: Mapping[str, Any]) -> str:
    """Return the report as text. Escape sequences are shown: the terminal does not obey them."""
    formats = {"samples/s": "{:.0f}".format, "memory": size, "loss": "{:.4f}".format}
    head = ("run", "strategy", "world", "step", "of", *formats)
    rows: list[Sequence[str]] = [head]
    lines = []
    for run in report["runs"]:
        rows.append(["" if run[key] is None else formats.get(key, str)(run[key]) for key in head])
        if run["evaluation"]:
            lines.append(f"{run['run']}: {metrics_text(run['evaluation'])}")
    lines += report["notes"]
    narrow = [fill(line, 80, subsequent_indent="  ", break_long_words=False) for line in lines]
    return printable("\n".join([columns(rows), *narrow]))
