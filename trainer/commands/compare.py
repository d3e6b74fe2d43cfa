"""``trainer compare RUNS...``: finished runs beside each other, or one training config under several launch files.

The answer comes in three forms: a table here, a JSON, and one HTML page that needs nothing else.
"""

from __future__ import annotations

import argparse
import html
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.load import load_config
from ..errors import COMMAND_LINE, ConfigError, Origin, Problem
from ..launching.files.read import read_accelerate_file
from ..text import size
from .comparing import report
from .runs import Run, read_run
from .trial import check_script, start

TEMPLATE = Path(__file__).with_name("compare.html")


def run(argv: Sequence[str]) -> int:
    """0: all runs could be read. 1: with ``--launch``, a training failed; the others are compared all the same."""
    args, rest = _parser().parse_known_args(argv)
    if args.launch:
        runs = launch_all(args, rest)
    elif rest:
        raise _wrong(rest[0], "belongs to a training: it has an effect beside --launch only")
    else:
        runs = [read_run(path) for path in args.paths]
    told = report(runs)
    others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    told["title"] = args.title or f"{told['runs'][0]['name']}{others}"
    base = Path(args.output) if args.launch else Path()
    pages = {"html": args.html or str(base / "compare.html"), "json": args.json}
    Path(pages["html"]).write_text(page(told), encoding="utf-8")
    if pages["json"]:
        Path(pages["json"]).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(table(told))
    print("written: " + ", ".join(path for path in pages.values() if path))
    return int(any(run.error for run in runs))


def launch_all(args: argparse.Namespace, rest: Sequence[str]) -> list[Run]:
    """Train once for each launch file, one after another; training config and settings are the same for all.

    Raises:
        ConfigError: a file or a setting is wrong; nothing was started then.
    """
    if args.config is None:
        raise _wrong("--launch", "needs --config: the training config that all of them run")
    check_script(args.script)
    names = [Path(path).stem for path in args.paths]
    if len(set(names)) < len(names):
        raise _wrong(names[0], "two launch files have the same name; the runs are called after them")
    load_config(["--config", args.config, *rest])
    for path in args.paths:
        read_accelerate_file(path)
    runs = []
    for path, name in zip(args.paths, names, strict=True):
        folder, log = Path(args.output) / name, Path(args.output) / f"{name}.log"
        print(f"{name} ...", flush=True)
        arguments = ["--config", args.config, "--output_dir", str(folder), *rest]
        error = start(path, args.script, arguments, log, verbose=args.verbose)
        if error:  # what lies in the folder may be of a former run
            print(f"{name}: {error} ({log})", file=sys.stderr)
            runs.append(Run(name=name, path=str(folder), plan={}, rows=[], error=error))
        else:
            runs.append(read_run(folder))
    return runs


def page(told: Mapping[str, Any]) -> str:
    """One HTML file with all data in it; nothing is loaded from anywhere."""
    data = json.dumps(told).replace("<", "\\u003c")  # a name with </script> in it stays a name
    text = TEMPLATE.read_text(encoding="utf-8")
    return text.replace("{{title}}", html.escape(str(told["title"]))).replace("{{data}}", data)


def table(told: Mapping[str, Any]) -> str:
    """Write the report for a terminal."""
    heads = ["run", "strategy", "world", "samples/s", "peak memory", "states", "sent a step", "final loss"]
    metrics = list(dict.fromkeys(key for entry in told["runs"] for key in entry["final"] if key != "loss"))
    cells = [[*heads, *metrics]]
    for entry in told["runs"]:
        memory, speed = max(entry["peak_memory_bytes"], default=None), entry["samples_per_second"]
        states, sent = entry["state_bytes_per_rank"], entry["sent_bytes_per_step"]
        cells.append(
            [
                entry["name"],
                *("" if entry[key] is None else str(entry[key]) for key in ("strategy", "world_size")),
                f"{speed:.0f}" if speed else "",
                *("" if count is None else size(count) for count in (memory, states, sent)),
                *(f"{entry['final'][key]:.4f}" if key in entry["final"] else "" for key in ("loss", *metrics)),
            ]
        )
    lines = _columns(cells, left=2)
    different = {
        key: row for key, row in told["settings"]["different"].items() if key not in ("strategy", "world_size")
    }
    if different:
        rows = [[e["name"], *(_plain(row.get(e["name"], "")) for row in different.values())] for e in told["runs"]]
        lines += ["", "settings that differ", *_columns([["run", *different], *rows], left=1)]
    lines.append("")
    for entry in told["runs"]:
        others = ", ".join(f"{k} {_plain(a)} -> {_plain(b)}" for k, (a, b) in entry["differs"].items())
        what = "; ".join(filter(None, [entry["state"], others and f"other settings: {others}"]))
        if what:
            lines.append(f"{entry['name']}: {what}")
    for group in told["groups"]:
        if len(group["runs"]) > 1:
            lines.append(f"parity of {', '.join(group['runs'])}: {group['verdict']}: {group['why']}")
    same = ", ".join(f"{key} {_plain(value)}" for key, value in told["settings"]["same"].items())
    lines += textwrap.wrap(f"the same in all: {same}", 118, break_long_words=False, break_on_hyphens=False)
    return "\n".join([*lines, told["recommendation"]])


def _columns(cells: Sequence[Sequence[str]], *, left: int) -> list[str]:
    """Align the rows; the first ``left`` columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            t.ljust(w) if at < left else t.rjust(w) for at, (t, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value, default=str)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer compare",
        description=(__doc__ or "").split("\n\n")[0],
        epilog="Behind --launch, further settings such as --max_steps 50 go to every training.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        help="output folders, W&B offline folders, wandb:ENTITY/PROJECT/RUN; with --launch: accelerate YAMLs",
    )
    add("--launch", action="store_true", help="train first: once for each accelerate YAML, one after another")
    add("--config", help="with --launch: the training config")
    add("--script", help="with --launch: your training script; not needed where the config names the task")
    add("--output", default="runs/compare", help="with --launch: folder of the runs; default runs/compare")
    add("--verbose", action="store_true", help="with --launch: show what the trainings print")
    add("--html", help="where the page goes; default compare.html, with --launch in the output folder")
    add("--json", help="write the same as JSON")
    add("--title", help="headline of the page")
    return parser


def _wrong(value: str, rule: str) -> ConfigError:
    return ConfigError(Problem(origin=Origin(COMMAND_LINE), value=value, rule=rule))
