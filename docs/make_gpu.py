"""Write the results of ``make gpu`` as a page beside the first file.

    python docs/make_gpu.py FILE ...

A file is a JSON of tests (``make gpu`` leaves one, ``benchmarks/gpu_run.py`` two), or has lines of
JSON: the rows of ``benchmarks/gpu_table.py``, the answers of ``benchmarks/gpu_probes.py``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def page(results: dict[str, Any]) -> str:
    """Return the page of results."""
    machine, tests = results["machine"], results["tests"]
    failed = [name for name, told in tests.items() if told["outcome"] == "failed"]
    skipped = [name for name, told in tests.items() if told["outcome"] == "skipped"]
    gpus = [gpu.replace(", ", ", driver ") for gpu in sorted({*machine["gpus"]})] or ["no GPU"]
    versions = [f"{name} {version}" for name, version in machine["versions"].items()]
    where = f"{machine['visible']} x {', '.join([*gpus, *versions])}"
    lines = [
        f"Measured {results['date']}, {where}; {results['seconds']} s; device {results['device']}.",
        "",
        f"{len(tests) - len(failed) - len(skipped)} of {len(tests)} tests passed.",
        *([] if results.get("complete", True) else ["The command was ended before the rest ran."]),
        *(f"- failed: {name}: {tests[name].get('error', '')}" for name in failed),
        *(f"- not run: {name}: {tests[name].get('error', '')}" for name in skipped),
        *(f"- not run: {line}" for line in results["not_run"]),
        *refused(results["figures"]),
        "",
        *rows_of_table(results.get("rows", [])),
        *answers(results.get("rows", [])),
        *speed(results["figures"]),
        *curves(results["figures"]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def refused(figures: dict[str, Any]) -> list[str]:
    """Return what the package refuses on that machine, of tests that checked this."""
    found = [(name, told["refused"]) for name, told in figures.items() if "refused" in told]
    return [f"- refused there: {name}: {text}" for name, text in found]


def rows_of_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the table of each strategy beside a loop by hand, as far as it was measured."""
    found = [row for row in rows if "loop" in row]
    if not found:
        return []
    sys.path.insert(0, str(ROOT))
    from benchmarks.gpu_table import table

    return [*table(found).splitlines(), ""]


def answers(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table of what was asked of the GPU."""
    lines = []
    for row in rows:
        if "probe" in row:
            told = {key: value for key, value in row.items() if key not in ("probe", "error")}
            text = ", ".join(f"{key} {shown(value)}" for key, value in told.items())
            lines.append(f"| {row['probe']} | {text} | {row.get('error', '').strip()[-200:]} |")
    return ["| asked | answer | error |", "|---|---|---|", *lines, ""] if lines else []


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def speed(figures: dict[str, Any]) -> list[str]:
    """Return the table of speed and memory, as far as it was measured."""
    rows = []
    for name, found in figures.items():
        model = re.search(r"\[(.+)\]", name)
        if not name.startswith("test_a_step_costs") or "error" in found or model is None:
            continue
        for loop in ("by hand", "samecurve", "transformers.Trainer"):
            told, times = (
                found[loop],
                found[loop]["seconds_per_step"] / found["by hand"]["seconds_per_step"],
            )
            rows.append(
                f"| {model[1]} | {loop} | {1e3 * told['seconds_per_step']:.1f} | {times:.2f} "
                f"| {told['tokens_per_second']:,.0f} | {told['peak_bytes'] / 2**30:.1f} |"
            )
        rehearsed = f"{found['rehearsed_bytes'] / 2**30:.1f}"
        rows.append(f"| {model[1]} | `trainer rehearse`, not compiled | | | | {rehearsed} |")
    head = [
        "| model | loop | ms a step | beside by hand | tokens/s | peak GiB |",
        "|---|---|---:|---:|---:|---:|",
    ]
    return [*head, *rows, ""] if rows else []


def curves(figures: dict[str, Any]) -> list[str]:
    """Return how far each curve was from the one that it was held against."""
    found = {
        name: told["furthest_loss"] for name, told in figures.items() if "furthest_loss" in told
    }
    rows = [
        f"| {name.removeprefix('test_').replace('_', ' ')} | {gap:.1e} |"
        for name, gap in found.items()
    ]
    return ["| test | largest relative difference of a loss |", "|---|---:|", *rows] if rows else []


def read(files: list[Path]) -> dict[str, Any]:
    """Return the results of all files as one."""
    results: dict[str, Any] = {}
    rows = []
    for file in files:
        if file.suffix == ".jsonl":
            rows += [json.loads(line) for line in file.read_text().splitlines()]
            continue
        told = json.loads(file.read_text())
        if not results:
            results = told
            continue
        results["tests"] |= told["tests"]
        results["figures"] |= told["figures"]
        results["seconds"] += told["seconds"]
        results["complete"] = results.get("complete", True) and told.get("complete", True)
    return {**results, "rows": rows}


def main() -> None:
    files = [Path(name) for name in sys.argv[1:]]
    target = files[0].with_suffix(".md")
    target.write_text(page(read(files)))
    print(target)


if __name__ == "__main__":
    main()
