"""The report of ``trainer compare`` for people: a table for a terminal, and one HTML page."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...text import columns, printable, size

# Columns that say nothing where all runs of a sweep have the same in them.
_LAYOUT_COLUMNS = ("strategy", "world", "states")
_MOST_SETTINGS = 6  # that are columns of the table; more have a table of their own
TEMPLATE = Path(__file__).with_name("page.html")


def as_page(report: Mapping[str, Any]) -> str:
    """Return one HTML file with all data in it; nothing is loaded from anywhere."""
    data = json.dumps(report).replace("<", "\\u003c")  # a name with </script> in it stays a name
    page = TEMPLATE.read_text(encoding="utf-8")
    page = page.replace("{{title}}", html.escape(str(report["title"])))
    return page.replace("{{data}}", data)


def as_table(report: Mapping[str, Any]) -> str:
    """Return the report for a terminal: a table of the runs, and what to know about them.

    Escape sequences in names are shown, so that the terminal does not obey them.
    """
    settings = _settings_of_a_sweep(report)
    if settings:
        lines = columns(_rows_of_a_sweep(report, settings), left=1)
    else:
        lines = columns(_rows(report), left=2)
        lines += _different_settings(report)
    lines.append("")

    for run in report["runs"]:
        remarks = _remarks(run, with_settings=not settings)
        if remarks:
            lines.append(f"{run['name']}: {remarks}")

    for group in report["groups"]:
        if len(group["runs"]) > 1:
            names = ", ".join(group["runs"])
            lines.append(f"parity of {names}: {group['verdict']}: {group['why']}")

    lines += _same_settings(report)
    lines.append(report["recommendation"])
    if report["best"]:
        lines.append(report["best"])
    return printable("\n".join(lines))


def _rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the heading and a row for each run."""
    runs = report["runs"]
    units = ["samples"]
    if any(run["tokens_per_second"] for run in runs):
        units.append("tokens")
    metrics: list[str] = []
    for run in runs:
        for key in run["final"]:
            if key != "loss" and key not in metrics:
                metrics.append(key)
    any_best = any(run["best"] for run in runs)

    heading = ["run", "strategy", "world"]
    heading += [f"{unit}/s (middle half)" for unit in units]
    heading += ["peak memory", "states", "final loss", *metrics]
    if any_best:
        heading.append("best")

    rows = [heading]
    for run in runs:
        row = _row(run, units, ["loss", *metrics])
        if any_best:
            row.append(_best(run))
        rows.append(row)
    return rows


def _settings_of_a_sweep(report: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings that differ, if few do and all runs have one layout; else none."""
    different: Mapping[str, Any] = report["settings"]["different"]
    one_layout = not {"strategy", "world_size"} & different.keys()
    return different if one_layout and len(different) <= _MOST_SETTINGS else {}


def _rows_of_a_sweep(report: Mapping[str, Any], settings: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return the rows with the settings that differ, without the layout where it is one for all."""
    heading, *rows = _rows(report)
    heading = [heading[0], *settings, *heading[1:]]
    widened = []
    for run, row in zip(report["runs"], rows, strict=True):
        own = [_plain(values.get(run["name"], "")) for values in settings.values()]
        widened.append([row[0], *own, *row[1:]])

    kept = []
    for column in zip(heading, *widened, strict=True):
        if column[0] not in _LAYOUT_COLUMNS or len(set(column[1:])) > 1:
            kept.append(column)
    return list(zip(*kept, strict=True))


def _row(run: Mapping[str, Any], units: Sequence[str], metrics: Sequence[str]) -> list[str]:
    """Return the row of a run; what is not known is empty.

    Args:
        run: of the report.
        units: of its speeds.
        metrics: of its final values.
    """
    row = [run["name"]]
    for key in ("strategy", "world_size"):
        row.append("" if run[key] is None else str(run[key]))
    row += [_speed(run, unit) for unit in units]

    peak_memory = max(run["peak_memory_bytes"], default=None)
    for count in (peak_memory, run["state_bytes_per_rank"]):
        row.append("" if count is None else size(count))
    for key in metrics:
        row.append(f"{run['final'][key]:.4f}" if key in run["final"] else "")
    return row


def _different_settings(report: Mapping[str, Any]) -> list[str]:
    """Return a table of the settings that are not the same in all runs, if there are any."""
    # Strategy and world size are in the table of the runs.
    different = {
        key: values
        for key, values in report["settings"]["different"].items()
        if key not in ("strategy", "world_size")
    }
    if not different:
        return []

    rows = [["run", *different]]
    for run in report["runs"]:
        name = run["name"]
        rows.append([name, *(_plain(values.get(name, "")) for values in different.values())])
    return ["", "settings that differ", *columns(rows, left=1)]


def _same_settings(report: Mapping[str, Any]) -> list[str]:
    """Return the settings that all runs share, wrapped to lines."""
    same = []
    of_groups = 0
    for key, value in report["settings"]["same"].items():
        if key.startswith("optimizer_groups."):
            of_groups += 1  # a dozen a group, most of them defaults; plan.json has them
        else:
            same.append(f"{key} {_plain(value)}")
    if of_groups:
        same.append(f"optimizer_groups ({of_groups} values)")
    text = f"the same in all: {', '.join(same)}"
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)


def _remarks(run: Mapping[str, Any], *, with_settings: bool) -> str:
    """Return what is unusual about a run: how it ended, its memory, its settings."""
    remarks = []
    if run["state"]:
        remarks.append(run["state"])

    beyond_training = []
    for phase, most in run["memory"].items():
        if most > 1.01 * run["memory"]["training"]:  # less is chance
            beyond_training.append(f"{phase} {size(most)}")
    if beyond_training:
        remarks.append(f"more memory than in training: {', '.join(beyond_training)}")

    changes = []
    for key, (usual, own) in run["differs"].items():
        changes.append(f"{key} {_plain(usual)} -> {_plain(own)}")
    if changes and with_settings:
        remarks.append(f"other settings: {', '.join(changes)}")
    return "; ".join(remarks)


def _speed(run: Mapping[str, Any], unit: str) -> str:
    speed = run[f"{unit}_per_second"]
    if not speed:
        return ""

    low, high = run[f"{unit}_per_second_quartiles"]
    return f"{speed:.0f} ({low:.0f}-{high:.0f})"


def _best(run: Mapping[str, Any]) -> str:
    best = run["best"]
    if best is None:
        return ""
    return f"{best['metric']} {best['value']:.4f} at step {best['step']}"


def _plain(value: object) -> str:
    """Return the value of a setting as people write it."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        value = float(f"{value:.12g}")  # 0.009, and not the 0.009000000000000001 of 3 * 0.003
    return json.dumps(value, default=str)
