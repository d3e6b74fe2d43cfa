"""Measure tables: ``python -m benchmarks.peers step``, or ``all``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from . import page, start
from .coordinator import Failed, run
from .tables import TABLES, Table


def chosen(table: Table, names: Sequence[str] | None) -> Table:
    """Return the table with its reference and those that are named."""
    rest = [one for one in table.contenders[1:] if names is None or one.name in names]
    return dataclasses.replace(table, contenders=(table.contenders[0], *rest))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    names = [*TABLES, "start"]
    every = [*names, "all"]
    parser.add_argument("tables", nargs="+", choices=every, metavar="TABLE", help=", ".join(every))
    parser.add_argument(
        "--contenders", nargs="+", metavar="NAME", help="these alone, beside the reference"
    )
    parser.add_argument("--rounds", type=int, help="turns of each contender")
    parser.add_argument("--block", type=int, help="steps of a turn")
    parser.add_argument(
        "--results", type=Path, default=page.RESULTS, help="folder of the JSON files"
    )
    args = parser.parse_args()
    command = shlex.join(["python", "-m", "benchmarks.peers", *sys.argv[1:]])
    args.results.mkdir(parents=True, exist_ok=True)
    invalid = 0
    for name in names if "all" in args.tables else args.tables:
        try:
            if name == "start":
                found = start.measure(command, args.rounds or start.ROUNDS)
            else:
                table = chosen(TABLES[name], args.contenders)
                found = run(
                    name, table, args.block or table.block, args.rounds or table.rounds, command
                )
        except Failed as error:
            print(f"{name}: {error}", file=sys.stderr)
            invalid = 1
            continue
        (args.results / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
        print(page.shown(found), flush=True)
        if args.results == page.RESULTS:
            page.write()
        invalid |= bool(found["problems"])
    return invalid


if __name__ == "__main__":
    sys.exit(main())
