"""``trainer compare RUNS...``: finished runs beside each other, or one training config under
several launch files.

The answer comes in three forms: a table here, a JSON, and one HTML page that needs nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ...launching.files.accelerate_file import read_accelerate_file
from ...script import load_config
from ...text import printable
from ..runs import Run, read_run
from ..trials import Trial, check_script
from ..usage import local_text, usage_error
from .present import as_page, as_table
from .report import make_report


def run(argv: Sequence[str]) -> int:
    """Return 0 where all runs could be read, 1 where a training of ``--launch`` failed: the others
    are compared.
    """
    args, rest = _parser().parse_known_args(argv)
    if args.launch:
        runs = launch_all(args, rest)
    elif rest:
        raise usage_error(
            "", rest[0], "belongs to a training: it has an effect beside --launch only"
        )
    else:
        runs = [read_run(path) for path in args.paths]
    report = make_report(runs)
    others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    report["title"] = args.title or f"{report['runs'][0]['name']}{others}"
    base = Path(args.output) if args.launch else Path()
    written = [args.html or str(base / "compare.html"), *([args.json] if args.json else [])]
    Path(written[0]).write_text(as_page(report), encoding="utf-8")
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(as_table(report))
    print(printable("written: " + ", ".join(written)))
    return int(any(run.error for run in runs))


def launch_all(args: argparse.Namespace, rest: Sequence[str]) -> list[Run]:
    """Train once for each launch file, one after another; training config and settings are the same
    for all.

    Raises:
        ConfigError: a file or a setting is wrong; nothing was started then.
    """
    if args.config is None:
        raise usage_error(
            "", "--launch", "needs --config: the training config that all of them run"
        )
    check_script(args.script)
    names = [Path(path).stem for path in args.paths]
    if len(set(names)) < len(names):
        raise usage_error(
            "", names[0], "two launch files have the same name; the runs are called after them"
        )
    arguments, output, runs = ["--config", args.config, *rest], Path(args.output), []
    load_config(arguments)
    for path in args.paths:
        read_accelerate_file(path)
    for path, name in zip(args.paths, names, strict=True):
        trial = Trial(
            name=name, launch_file=path, script=args.script, arguments=arguments,
            output=output / name, log=output / f"{name}.log",
        )  # fmt: skip
        runs.append(trial.run(verbose=args.verbose))
        if runs[-1].error:
            print(printable(f"{name}: {runs[-1].error} ({trial.log})"), file=sys.stderr)
    return runs


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
        type=local_text,
        help="output folders, W&B offline folders, wandb:ENTITY/PROJECT/RUN; with --launch: accelerate YAMLs",
    )
    add(
        "--launch",
        action="store_true",
        help="train first: once for each accelerate YAML, one after another",
    )
    add("--config", help="with --launch: the training config")
    add(
        "--script",
        help="with --launch: your training script; not needed where the config names the task",
    )
    add(
        "--output",
        type=local_text,
        default="runs/compare",
        help="with --launch: folder of the runs; default runs/compare",
    )
    add("--verbose", action="store_true", help="with --launch: show what the trainings print")
    add(
        "--html",
        type=local_text,
        help="where the page goes; default compare.html, with --launch in the output folder",
    )
    add("--json", type=local_text, help="write the same as JSON")
    add("--title", help="headline of the page")
    return parser
