"""Results as tables of Markdown, and the page that holds them: ``python -m benchmarks.peers.page`` writes it anew."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.reporting.machine import machine_text

from .tables import ROOT, TABLES

RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results -->\n", "<!-- end of results -->\n"


def shown(found: Mapping[str, Any]) -> str:
    """Write the result of one table, with how it was measured, and why it is not to be believed, if so."""
    counts = "tokens_per_second" in found["contenders"][0]
    columns = ["", "time of a step", "95 % interval", "CPU time", "ms a step", *(["tokens/s"] if counts else [])]
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)]]
    for one in found["contenders"]:
        interval = " to ".join(f"{end:.3f}" for end in one["interval"])
        line = [one["name"], f"{one['ratio']:.3f}", interval, f"{one['cpu_ratio']:.3f}", f"{one['ms']:.3g}"]
        lines.append([*line, *([f"{one['tokens_per_second']:,}"] if counts else [])])
    steps, packages = found["steps"], ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    furthest = max(one["apart"] for one in found["contenders"])
    return "\n".join(
        [
            f"### {found['title']}",
            "",
            *(f"**Invalid: {problem}.**\n" for problem in found["problems"]),
            *("| " + " | ".join(line) + " |" for line in lines),
            "",
            f"`{found['command']}`, {found['date']}, {found['seconds']} s: {steps['rounds']} turns of {steps['block']} "
            f"steps. Weights at the end at most {furthest:.0e} of their way apart. {machine_text(found['machine'])}, "
            f"load {found['load_before']} before; {packages}.",
            "",
        ]
    )


def summary(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Write one line a table: where samecurve is, and where it should be."""
    lines = ["| | beside | samecurve | 95 % interval | at most |", "|---|---|---:|---:|---:|"]
    for name, found in results.items():
        ours = next((one for one in found["contenders"] if one["name"] == "samecurve"), None)
        if ours is None or found["problems"]:
            continue
        interval = " to ".join(f"{end:.3f}" for end in ours["interval"])
        reference, target = found["contenders"][0]["name"], TABLES[name].target
        lines.append(f"| {found['title']} | {reference} | {ours['ratio']:.3f} | {interval} | {target:.2f} |")
    return "\n".join([*lines, ""])


def page(text: str, results: Path) -> str:
    """Return the page with the results of a folder between its marks."""
    found = {name: json.loads(path.read_text()) for name in TABLES if (path := results / f"{name}.json").exists()}
    tables = "\n".join([summary(found), *map(shown, found.values())]) if found else "Nothing is measured yet.\n"
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}{tables}{END}", text, flags=re.DOTALL)


def write() -> None:
    PAGE.write_text(page(PAGE.read_text(), RESULTS))


if __name__ == "__main__":
    write()
