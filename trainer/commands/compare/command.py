"""``trainer compare RUNS...``: finished runs beside each other, or one training config under
several launch files.

The answer comes in three forms: a table here, a JSON, and one HTML page that needs nothing else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ...launching.files.accelerate_file import read_accelerate_file
from ...script import load_config
from ...text import printable
from ..runs import Run, read_run
from ..trials import Trial
from ..usage import local_text, usage_error
from .present import as_page, as_table
from .report import make_report


def run(argv: Sequence[str]) -> int:
    """Print the table, and write the page and the JSON.

    Returns:
        0 if all runs could be read, 1 if a training of ``--launch`` failed. The others are
        compared.

    Raises:
        ConfigError: a run cannot be read, or a file or setting for ``--launch`` is wrong.
    """
    args, words = _parser().parse_known_args(argv)
    if args.launch:
        runs = launch_all(args, words)
    elif words:
        raise usage_error("", words[0], "is a setting of a training: it needs --launch")
    else:
        runs = [read_run(path) for path in args.paths]

    report = make_report(runs)
    report["title"] = args.title or ", ".join(run.name for run in runs[:3])
    page = args.html or str(Path(args.output if args.launch else "") / "compare.html")
    Path(page).write_text(as_page(report), encoding="utf-8")
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(as_table(report))
    print(printable(f"written: {page} {args.json or ''}".rstrip()))
    return 1 if any(run.error for run in runs) else 0


def launch_all(args: argparse.Namespace, settings: Sequence[str]) -> list[Run]:
    """Train once under each launch file, one after another, with the same config and settings.

    Args:
        args: the options of the command.
        settings: the other words of the command line, which go to every training.

    Raises:
        ConfigError: a file or a setting is wrong. Nothing was started then.
    """
    if args.config is None:
        raise usage_error("", "--launch", "needs --config: the training config of all runs")
    names = [Path(path).stem for path in args.paths]
    if len(set(names)) < len(names):
        raise usage_error("", names[0], "is the name of two launch files, and runs have theirs")

    arguments = ["--config", args.config, *settings]
    load_config(arguments)
    for path in args.paths:
        read_accelerate_file(path)
    runs = []
    for path, name in zip(args.paths, names, strict=True):
        trial = Trial(
            name=name,
            launch_file=path,
            script=args.script,
            arguments=[*arguments, "--push_to_hub=null"],  # one repository, several models
            folder=Path(args.output),
        )
        runs.append(trial.run())
    return runs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer compare",
        description=(__doc__ or "").split("\n\n")[0],
        epilog="Behind --launch, further settings such as --max_steps 50 go to every training.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("paths", nargs="+", type=local_text, help="output folders; with --launch accelerate YAMLs")
    add("--launch", action="store_true", help="train first, once for each accelerate YAML")
    add("--config", help="with --launch: the training config")
    add("--script", help="with --launch: your script; not needed if the config names the task")
    add("--output", type=local_text, default="runs/compare", help="with --launch: for the runs")
    add("--html", type=local_text, help="the page; default compare.html")
    add("--json", type=local_text, help="write the same as JSON")
    add("--title", help="headline of the page")
    return parser
