"""Results as tables of Markdown, and the page that holds them: ``python -m benchmarks.peers.page``
writes it anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.reporting.machine import machine_text

from .tables import ROOT, TABLES

RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "benchmarks" / "results" / "peers.md"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"


def shown(found: Mapping[str, Any]) -> str:
    """Write the result of one table, with how it was measured, and why it is not to be believed, if
    so.
    """
    lines, how = (start if found["table"] == "start" else steps)(found)
    packages = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    machine = f"{machine_text(found['machine'])}, load {found['load_before']} before; {packages}."
    return "\n".join(
        [
            f"### {found['title']}",
            "",
            *(f"**Invalid: {problem}.**\n" for problem in found["problems"]),
            *("| " + " | ".join(line) + " |" for line in lines),
            "",
            f"`{found['command']}`, {found['date']}, {found['seconds']} s: {how} {machine}",
            "",
        ]
    )


def steps(found: Mapping[str, Any]) -> tuple[list[list[str]], str]:
    counts = "tokens_per_second" in found["contenders"][0]
    columns = [
        "",
        "time of a step",
        "95 % interval",
        "CPU time",
        "ms a step",
        *(["tokens/s"] if counts else []),
    ]
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    for one in found["contenders"]:
        line = [
            one["name"],
            f"{one['ratio']:.3f}",
            ends(one),
            f"{one['cpu_ratio']:.3f}",
            f"{one['ms']:.3g}",
        ]
        lines.append([*line, *([f"{one['tokens_per_second']:,}"] if counts else [])])
    furthest = max(one["apart"] for one in found["contenders"])
    turns, block = found["steps"]["rounds"], found["steps"]["block"]
    return (
        lines,
        f"{turns} turns of {block} steps. Weights at the end at most {furthest:.0e} of their way apart.",
    )


def start(found: Mapping[str, Any]) -> tuple[list[list[str]], str]:
    lines = [
        ["", "seconds more", "95 % interval", "at most", "seconds in all"],
        ["---", *["---:"] * 4],
    ]
    for one in found["rows"]:
        numbers = [
            f"{one['seconds']:.3f}",
            ends(one),
            f"{one['target']:.2f}",
            f"{one['in_all']:.2f}",
        ]
        lines.append([one["name"], *numbers])
    return lines, f"{found['rounds']} rounds after one that is not counted."


def ends(one: Mapping[str, Any]) -> str:
    low, high = one["interval"]
    return f"{low:.3f} to {high:.3f}"


def summary(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Write one line a table: where samecurve is, and where it should be."""
    lines = ["| | beside | samecurve | 95 % interval | at most |", "|---|---|---:|---:|---:|"]
    for name, found in results.items():
        ours = next(
            (one for one in found.get("contenders", ()) if one["name"] == "samecurve"), None
        )
        if ours is None or found["problems"]:
            continue
        reference, target = found["contenders"][0]["name"], TABLES[name].target
        lines.append(
            f"| {found['title']} | {reference} | {ours['ratio']:.3f} | {ends(ours)} | {target:.2f} |"
        )
    return "\n".join([*lines, ""])


def page(text: str, results: Path) -> str:
    """Return the page with the results of a folder between its marks."""
    found = {
        name: json.loads(path.read_text())
        for name in (*TABLES, "start")
        if (path := results / f"{name}.json").exists()
    }
    tables = (
        "\n".join([summary(found), *map(shown, found.values())])
        if found
        else "Nothing is measured yet.\n"
    )
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}{tables}{END}", text, flags=re.DOTALL)


def write() -> None:
    PAGE.write_text(page(PAGE.read_text(), RESULTS))


if __name__ == "__main__":
    write()
