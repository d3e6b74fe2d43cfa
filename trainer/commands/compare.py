"""``trainer compare RUNS...``: finished runs beside each other, or one training config under several launch files.

The answer comes in three forms: a table here, a JSON, and one HTML page that needs nothing else.
"""

from __future__ import annotations

import argparse
import html
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, LaunchError, Problem
from .comparing import report, table
from .runs import read_run

TEMPLATE = Path(__file__).with_name("compare.html")


def run(argv: Sequence[str]) -> int:
    """0 when all runs could be read (and, with ``--launch``, ended well)."""
    args, rest = _parser().parse_known_args(argv)
    if args.launch:
        folders = launch_all(args, rest)
    elif rest:
        raise _wrong(rest[0], "belongs to a training: it has an effect beside --launch only")
    else:
        folders = [Path(path) for path in args.paths]
    told = report([read_run(folder) for folder in folders])
    told["title"] = args.title or f"{told['runs'][0]['name']} and {len(folders) - 1} more"
    base = Path(args.output) if args.launch else Path()
    pages = {"html": args.html or str(base / "compare.html"), "json": args.json}
    Path(pages["html"]).write_text(page(told), encoding="utf-8")
    if pages["json"]:
        Path(pages["json"]).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(table(told))
    print("written: " + ", ".join(path for path in pages.values() if path))
    return 0


def launch_all(args: argparse.Namespace, rest: Sequence[str]) -> list[Path]:
    """Train once for each launch file, one after another; the training config and what follows it are the same for all.

    Raises:
        LaunchError: a training failed; those before it are kept.
    """
    if args.config is None:
        raise _wrong("--launch", "needs --config: the training config that all of them run")
    names = [Path(path).stem for path in args.paths]
    if len(set(names)) < len(names):
        raise _wrong(names[0], "two launch files have the same name; the runs are called after them")
    folders = []
    for path, name in zip(args.paths, names, strict=True):
        folder = Path(args.output) / name
        words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", path, args.script]
        words += ["--config", args.config, "--output_dir", str(folder), *rest]
        print(f"{name}: {' '.join(words[1:])}", flush=True)
        done = subprocess.run(words, capture_output=not args.verbose, text=True, check=False)
        if done.returncode:
            told = "" if args.verbose else (done.stderr or done.stdout)[-3000:]
            raise LaunchError(f"{path}: the training ended with exit code {done.returncode}\n{told}")
        folders.append(folder)
    return folders


def page(told: Mapping[str, Any]) -> str:
    """One HTML file with all data in it; nothing is loaded from anywhere."""
    data = json.dumps(told).replace("<", "\\u003c")  # a name with </script> in it stays a name
    text = TEMPLATE.read_text(encoding="utf-8")
    return text.replace("{{title}}", html.escape(str(told["title"]))).replace("{{data}}", data)


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
    add("--script", default="examples/train.py", help="with --launch: the training script; default examples/train.py")
    add("--output", default="runs/compare", help="with --launch: folder of the runs; default runs/compare")
    add("--verbose", action="store_true", help="with --launch: show what the trainings print")
    add("--html", help="where the page goes; default compare.html, with --launch in the output folder")
    add("--json", help="write the same as JSON")
    add("--title", help="headline of the page")
    return parser


def _wrong(value: str, rule: str) -> ConfigError:
    return ConfigError(Problem(where="command line", key="", value=value, rule=rule))
