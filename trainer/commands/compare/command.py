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
    """Print the table, and write the page and the JSON.

    Returns:
        0 where all runs could be read, 1 where a training of ``--launch`` failed; the others are
        compared.

    Raises:
        ConfigError: a run cannot be read, or a file or setting for ``--launch`` is wrong.
    """
    args, words = _parser().parse_known_args(argv)
    if args.launch:
        runs = launch_all(args, words)
    elif words:
        rule = "belongs to a training: it has an effect beside --launch only"
        raise usage_error("", words[0], rule)
    else:
        runs = [read_run(path) for path in args.paths]

    report = make_report(runs, args.by, args.mode)
    first_name = report["runs"][0]["name"]
    others = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
    report["title"] = args.title or f"{first_name}{others}"

    folder = Path(args.output) if args.launch else Path()
    page = args.html or str(folder / "compare.html")
    Path(page).write_text(as_page(report), encoding="utf-8")
    written = [page]
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        written.append(args.json)

    print(as_table(report))
    print(printable("written: " + ", ".join(written)))
    any_failed = any(run.error for run in runs)
    return 1 if any_failed else 0


def launch_all(args: argparse.Namespace, settings: Sequence[str]) -> list[Run]:
    """Train once under each launch file, one after another, with the same config and settings.

    Args:
        args: the options of the command.
        settings: the other words of the command line, which go to every training.

    Raises:
        ConfigError: a file or a setting is wrong; nothing was started then.
    """
    if args.config is None:
        rule = "needs --config: the training config that all of them run"
        raise usage_error("", "--launch", rule)
    check_script(args.script)
    names = [Path(path).stem for path in args.paths]
    if len(set(names)) < len(names):
        rule = "two launch files have the same name; the runs are called after them"
        raise usage_error("", names[0], rule)

    arguments = ["--config", args.config, *settings]
    is_pushed = load_config(arguments).config.push_to_hub is not None
    if is_pushed and not any(word.startswith("--push_to_hub") for word in settings):
        arguments.append("--push_to_hub=null")  # one repository, and several models of one training
    for path in args.paths:
        read_accelerate_file(path)

    runs = []
    for path, name in zip(args.paths, names, strict=True):
        trial = Trial(
            name=name,
            launch_file=path,
            script=args.script,
            arguments=arguments,
            output=Path(args.output) / name,
            log=Path(args.output) / f"{name}.log",
        )
        run = trial.run(verbose=args.verbose)
        runs.append(run)
        if run.error:
            print(printable(f"{name}: {run.error} ({trial.log})"), file=sys.stderr)
    return runs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer compare",
        description=(__doc__ or "").split("\n\n")[0],
        epilog="Behind --launch, further settings such as --max_steps 50 go to every training.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "paths",
        nargs="+",
        type=local_text,
        help="output folders, W&B offline folders, wandb:ENTITY/PROJECT/RUN; with --launch: "
        "accelerate YAMLs",
    )
    parser.add_argument(
        "--launch",
        action="store_true",
        help="train first: once for each accelerate YAML, one after another",
    )
    parser.add_argument("--config", help="with --launch: the training config")
    parser.add_argument(
        "--script",
        help="with --launch: your training script; not needed where the config names the task",
    )
    parser.add_argument(
        "--output",
        type=local_text,
        default="runs/compare",
        help="with --launch: folder of the runs; default runs/compare",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="with --launch: show what the trainings print"
    )
    parser.add_argument(
        "--html",
        type=local_text,
        help="where the page goes; default compare.html, with --launch in the output folder",
    )
    parser.add_argument("--json", type=local_text, help="write the same as JSON")
    parser.add_argument(
        "--by", help="name the best run by this metric, such as eval/accuracy; else by best_metric"
    )
    parser.add_argument(
        "--mode", choices=("min", "max"), help="with --by: which of its values is the best"
    )
    parser.add_argument("--title", help="headline of the page")

    return parser
