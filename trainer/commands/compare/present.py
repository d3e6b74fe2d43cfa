"""The report of ``trainer compare`` for people: a table for a terminal, and one HTML page."""

from __future__ import annotations

import html
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...text import columns, printable, size

TEMPLATE = Path(__file__).with_name("page.html")


def as_page(report: Mapping[str, Any]) -> str:
    """Write one HTML file with all data in it; nothing is loaded from anywhere."""
    data = json.dumps(report).replace("<", "\\u003c")  # a name with </script> in it stays a name
    text = TEMPLATE.read_text(encoding="utf-8")
    return text.replace("{{title}}", html.escape(str(report["title"]))).replace("{{data}}", data)


def as_table(report: Mapping[str, Any]) -> str:
    """Write the report for a terminal, which obeys nothing that stands in names."""
    lines = columns(_rows(report), left=2)
    settings = report["settings"]
    different = {
        key: row
        for key, row in settings["different"].items()
        if key not in ("strategy", "world_size")
    }
    if different:
        rows = [
            [run["name"], *(_plain(row.get(run["name"], "")) for row in different.values())]
            for run in report["runs"]
        ]
        lines += ["", "settings that differ", *columns([["run", *different], *rows], left=1)]
    lines.append("")
    for run in report["runs"]:
        others = ", ".join(
            f"{key} {_plain(usual)} -> {_plain(own)}"
            for key, (usual, own) in run["differs"].items()
        )
        beyond = [
            f"{phase} {size(most)}"
            for phase, most in run["memory"].items()
            if most > run["memory"]["training"]
        ]
        memory = f"more memory than in training: {', '.join(beyond)}" if beyond else ""
        if remarks := "; ".join(
            filter(None, [run["state"], memory, others and f"other settings: {others}"])
        ):
            lines.append(f"{run['name']}: {remarks}")
    for group in report["groups"]:
        if len(group["runs"]) > 1:
            lines.append(
                f"parity of {', '.join(group['runs'])}: {group['verdict']}: {group['why']}"
            )
    same = ", ".join(f"{key} {_plain(value)}" for key, value in settings["same"].items())
    lines += textwrap.wrap(
        f"the same in all: {same}", 118, break_long_words=False, break_on_hyphens=False
    )
    return printable("\n".join([*lines, report["recommendation"]]))


def _rows(report: Mapping[str, Any]) -> list[list[str]]:
    counts_tokens = any(run["tokens_per_second"] for run in report["runs"])
    units = ["samples", *(["tokens"] if counts_tokens else [])]
    speeds = [f"{unit}/s (middle half)" for unit in units]
    heads = [
        "run",
        "strategy",
        "world",
        *speeds,
        "peak memory",
        "states",
        "sent a step",
        "final loss",
    ]
    metrics = list(
        dict.fromkeys(key for run in report["runs"] for key in run["final"] if key != "loss")
    )
    watched = any(run["best"] for run in report["runs"])
    rows = [[*heads, *metrics, *(["best"] if watched else [])]]
    for run in report["runs"]:
        counts = (
            max(run["peak_memory_bytes"], default=None),
            run["state_bytes_per_rank"],
            run["sent_bytes_per_step"],
        )
        rows.append(
            [
                run["name"],
                *("" if run[key] is None else str(run[key]) for key in ("strategy", "world_size")),
                *(_speed(run, unit) for unit in units),
                *("" if count is None else size(count) for count in counts),
                *(
                    f"{run['final'][key]:.4f}" if key in run["final"] else ""
                    for key in ("loss", *metrics)
                ),
                *([_best(run)] if watched else []),
            ]
        )
    return rows


def _speed(run: Mapping[str, Any], unit: str) -> str:
    speed = run[f"{unit}_per_second"]
    if not speed:
        return ""
    low, high = run[f"{unit}_per_second_quartiles"]
    return f"{speed:.0f} ({low:.0f}-{high:.0f})"


def _best(run: Mapping[str, Any]) -> str:
    best = run["best"]
    return "" if best is None else f"{best['metric']} {best['value']:.4f} at step {best['step']}"


def _plain(value: object) -> str:
    return (
        value
        if isinstance(value, str)
        else "none"
        if value is None
        else json.dumps(value, default=str)
    )
