"""``trainer compare RUNS...``: curves, speed and memory of runs beside each other.

Runs with equal settings form a group. The curves of a group are compared with that of the group's
first run. The settings of the other groups are compared with those of the first group.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import chain
from textwrap import fill
from typing import Any

from ..checkpoint.compatibility import differences
from ..config.fingerprint import fingerprint
from ..errors import ConfigError, Origin, Problem
from ..reporting.directory import json_text
from ..reporting.speed import steady_speed
from ..text import columns, metrics_text, printable, size
from .curves import bounds_of, gaps_of, judge
from .nudged import is_nudged
from .runs import Run, read_run
from .usage import local_path, local_text


def run(argv: Sequence[str]) -> int:
    """Print the table, and return 0.

    Raises:
        ConfigError: a run cannot be read, or no run has logged a step.
    """
    parser = argparse.ArgumentParser(prog="trainer compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=local_text, metavar="RUN", help="output folders")
    parser.add_argument("--json", type=local_path, metavar="FILE", help="write the same as JSON")
    args = parser.parse_args(argv)

    report = make_report([read_run(path) for path in args.runs])
    if args.json:
        args.json.write_text(json_text(report), encoding="utf-8")
    print(as_table(report))
    return 0


def make_report(runs: Sequence[Run]) -> dict[str, Any]:
    """Collect the values of the table and the JSON.

    Returns:
        ``runs``, a mapping for each, and ``notes``, the lines below the table.

    Raises:
        ConfigError: no run has logged a step.
    """
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    by_name = dict(zip(names, runs, strict=True))
    groups: dict[str, dict[str, Run]] = {}
    for name, run in by_name.items():
        if run.curve("loss"):
            groups.setdefault(_settings(run), {})[name] = run
    if not groups:
        origin = Origin(", ".join(run.path for run in runs))
        raise ConfigError(Problem(origin=origin, rule="no step was logged"))

    notes = []
    usual = json.loads(next(iter(groups)))
    for settings, group in groups.items():
        first = next(iter(group))
        notes += [f"{first}: {line}" for line in differences(usual, json.loads(settings))]
        notes += _verdicts(group)
    return {"runs": [_entry(name, run) for name, run in by_name.items()], "notes": notes}


def _settings(run: Run) -> str:
    """Return the settings that decide the numbers, as JSON."""
    settings = fingerprint(run.plan)
    if is_nudged(run):  # the weights are those of the reference, but for their last places
        settings["weights"] = None
    return json.dumps(settings, sort_keys=True, default=str)


def _verdicts(group: Mapping[str, Run]) -> list[str]:
    """Judge whether the runs of a group have the curve of the first run.

    Runs from nudged weights show how far rounding leads the first run.
    """
    first, *others = group
    bounds = bounds_of(group[first].plan)
    gaps = {name: {"loss": gaps_of(group[name], group[first], "loss")} for name in others}
    nudged = [gaps.pop(name) for name in others if is_nudged(group[name])]
    return [
        f"beside {first}, {name}: {judge(own, bounds, nudged)}"
        for name, own in gaps.items()
        if own["loss"]
    ]


def _entry(name: str, run: Run) -> dict[str, Any]:
    """Return the values of a run. An unknown value is None."""
    last = dict(chain(*(row.items() for row in run.rows)))
    step = max(run.curve("loss"), default=0)
    total = run.plan.get("total_steps")
    state = f"{'ended' if run.summary else 'did not end'}; last logged step {step} of {total}"
    return {
        "run": name,
        "strategy": run.plan["strategy"],
        "world": run.plan["world_size"],
        "samples/s": steady_speed(run.rows, "samples"),
        "memory": max(run.summary.get("peak_memory_bytes", ()), default=None),
        "loss": last.get("loss"),
        "state": "" if run.summary and step == total else state,
        "evaluation": {
            key: value
            for key, value in last.items()
            if key.startswith("eval/") and value is not None
        },
    }


def as_table(report: Mapping[str, Any]) -> str:
    """Return the report as text. Escape sequences are shown: the terminal does not obey them."""
    formats = {"samples/s": "{:.0f}".format, "memory": size, "loss": "{:.4f}".format}
    head = ("run", "strategy", "world", *formats)
    rows: list[Sequence[str]] = [head]
    lines = []
    for run in report["runs"]:
        rows.append(["" if run[key] is None else formats.get(key, str)(run[key]) for key in head])
        texts = (run["state"], metrics_text(run["evaluation"]))
        lines += [f"{run['run']}: {text}" for text in texts if text]
    lines += report["notes"]
    narrow = [fill(line, 80, subsequent_indent="  ", break_long_words=False) for line in lines]
    return printable("\n".join([*columns(rows), *narrow]))
