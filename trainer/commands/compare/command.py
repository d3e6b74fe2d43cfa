"""``trainer compare RUNS...``: runs beside each other.

The answer comes in three forms: a table here, a JSON, and one HTML page that needs nothing else.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from ...text import printable
from ..runs import read_run
from ..usage import local_text
from .present import as_page, as_table
from .report import make_report


def run(argv: Sequence[str]) -> int:
    """Print the table, and write the page and the JSON.

    Returns:
        0.

    Raises:
        ConfigError: a run cannot be read.
    """
    args = _parser().parse_args(argv)
    runs = [read_run(path) for path in args.paths]
    report = make_report(runs)
    report["title"] = args.title or ", ".join(run.name for run in runs[:3])
    Path(args.html).write_text(as_page(report), encoding="utf-8")
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(as_table(report))
    print(printable(f"written: {args.html} {args.json or ''}".rstrip()))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer compare",
        description=(__doc__ or "").split("\n\n")[0],
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("paths", nargs="+", type=local_text, metavar="RUN", help="output folders of runs")
    add("--html", type=local_text, default="compare.html", help="the page; default %(default)s")
    add("--json", type=local_text, help="write the same as JSON")
    add("--title", help="headline of the page")
    return parser
