"""Measure tables: ``python -m benchmarks.peers step``, or ``all``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from pathlib import Path

from . import page
from .coordinator import Failed, run
from .tables import TABLES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument(
        "tables", nargs="+", choices=[*TABLES, "all"], metavar="TABLE", help=", ".join([*TABLES, "all"])
    )
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="these alone, beside the reference")
    parser.add_argument("--rounds", type=int, help="turns of each contender")
    parser.add_argument("--block", type=int, help="steps of a turn")
    parser.add_argument("--results", type=Path, default=page.RESULTS, help="folder of the JSON files")
    args = parser.parse_args()
    command = shlex.join(["python", "-m", "benchmarks.peers", *sys.argv[1:]])
    args.results.mkdir(parents=True, exist_ok=True)
    invalid = 0
    for name in TABLES if "all" in args.tables else args.tables:
        table = TABLES[name]
        if args.contenders:
            rest = [one for one in table.contenders[1:] if one.name in args.contenders]
            table = dataclasses.replace(table, contenders=(table.contenders[0], *rest))
        try:
            found = run(
                name, table, block=args.block or table.block, rounds=args.rounds or table.rounds, command=command
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
