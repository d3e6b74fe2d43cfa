"""``trainer check FILES... [SETTINGS...]``: read launch files and training configs together, and
say what will run.

    trainer check accel_configs/zero3.yaml train.yaml --max_steps 5 micro_batch_size=4

Nothing is started. Every launch file is checked with every training config, and all problems of all
files are shown at once. What is no file and no option of this command is a setting of the training
config.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def run(argv: Sequence[str]) -> int:
    """Return 0 if all of it would run, 1 if something is wrong."""
    parser = _parser()
    args, words = parser.parse_known_args(argv)
    if args.processes is not None and args.processes < 1:
        parser.error("--processes must be at least 1")

    if not words:
        parser.error("name the files to check; `accelerate env` describes this machine")

    # Imported here, because torch takes seconds and --help does not need it.
    from .check_files import check_files

    return check_files(args, words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [FILE ...] [--key value | key=value ...] [options]",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--processes", type=int, help="as many are launched; else what the files say, else 2"
    )
    parser.add_argument(
        "--script", default="examples/train.py", help="the script whose folder holds the task"
    )

    return parser
