"""The report of ``trainer compare`` for people: a table for a terminal, and one HTML page."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...text import columns, printable, size

_COLUMNS = 80
TEMPLATE = Path(__file__).with_name("page.html")


def as_page(report: Mapping[str, Any]) -> str:
    """Return one HTML file with all data in it. Nothing is loaded from anywhere."""
    data = json.dumps(report).replace("<", "\\u003c")  # a name with </script> in it stays a name
    page = TEMPLATE.read_text(encoding="utf-8")
    page = page.replace("{{title}}", html.escape(str(report["title"])))
    return page.replace("{{data}}", data)


def as_table(report: Mapping[str, Any]) -> str:
    """Return the report for a terminal of 80 columns.

    Escape sequences in names are shown, so that the terminal does not obey them.
    """
    rows = [["run", "strategy", "world", "samples/s", "memory", "loss"]]
    for run in report["runs"]:
        speed = run["samples_per_second"]
        peak = max(run["peak_memory_bytes"], default=None)
        loss = run["final"].get("loss")
        rows.append(
            [
                run["name"],
                str(run["strategy"] or ""),
                str(run["world_size"] or ""),
                "" if speed is None else f"{speed:.0f}",
                "" if peak is None else size(peak),
                "" if loss is None else f"{loss:.4f}",
            ]
        )
    lines = columns(rows)

    for run in report["runs"]:
        if run["state"]:
            lines += _wrapped(f"{run['name']}: {run['state']}")
        metrics = [f"{key} {value:.4f}" for key, value in run["final"].items() if key != "loss"]
        if metrics:
            lines += _wrapped(f"{run['name']}: {', '.join(metrics)}")
    for key, values in report["settings"]["different"].items():
        if key not in ("strategy", "world_size"):
            told = ", ".join(f"{name} {plain(value)}" for name, value in values.items())
            lines += _wrapped(f"{key}: {told}")
    for group in report["groups"]:
        for verdict in group["verdicts"]:
            lines += _wrapped(f"beside {group['reference']}, {verdict}")
    return printable("\n".join(lines))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _COLUMNS, subsequent_indent="  ", break_on_hyphens=False)


def plain(value: object) -> str:
    """Return the value of a setting as people write it."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        value = float(f"{value:.12g}")  # 0.009, and not the 0.009000000000000001 of 3 * 0.003
    return json.dumps(value, default=str)
