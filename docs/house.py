"""Print the shape of the package: floors, rings (with their lines of code), rooms and arrows.

    python docs/house.py            # the figures of docs/architecture.md
    python docs/house.py arrows     # every import between rooms, with the file that has it

A room is a file or a folder directly in ``trainer/``. An arrow leads from a room to one that it imports, for types or
at run time, at the top of a file or inside a function. A floor is the length of the longest way down.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "trainer"
# The names that `import trainer` offers and the two ways to start a command lead anywhere, and are no rooms.
DOORS = ("__init__", "__main__")
# Lines may grow in one place only if they shrink in another; tests/unit/test_structure.py holds the limits.
RINGS: dict[str, tuple[str, int | None]] = {
    "engine": (
        "building strategies data optim metrics task state loop distributed/agreement "
        "callbacks/base callbacks/builtin callbacks/configured",
        2600,
    ),
    # Ranks that are gone or stand still, signals and stops, numbers without a value, flipped bits, lost gradients.
    "faults": (
        "distributed/watch distributed/watchdog distributed/activity distributed/votes distributed/restarts "
        "callbacks/numbers callbacks/replicas callbacks/time_limit callbacks/tracker_faults "
        "strategies/finite strategies/exchange reporting/attempts checkpoint/restarted data/worker_signals",
        900,
    ),
    # Held by nobody whole: models without values, divided layers, what was read, the order of a billion samples.
    "large models and data": (
        "building/unfilled strategies/blank strategies/tensor_parallel checkpoint/proof data/order",
        340,
    ),
    # Of models, tasks and optimizers that nobody foresaw: optimizers by class that step parts, layers compiled apart on
    # each rank, parameters that are read and changed outside of the optimizer, hooks, shared memory, streams.
    "what users bring": (
        "building/brought optim/optimizers strategies/trial strategies/gradient_order strategies/in_place data/alike",
        600,
    ),
    "checkpoints": ("checkpoint", 1600),
    "front door": (
        "__init__ __main__ config launching script distributed/launcher distributed/imports distributed/exit",
        2500,
    ),
    "reporting": ("reporting callbacks/tracking callbacks/wandb_run callbacks/profiling", 750),
    "language": ("language", 1380),  # 1,200 without models in 4 bits and hidden words
    "ground": ("errors text plan", None),
    "commands": ("commands", None),
}
NO_CODE = {getattr(tokenize, name) for name in ["COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"]}
Arrows = dict[str, dict[str, list[str]]]  # room -> room that it imports -> "file:line" of each import


def modules() -> list[Path]:
    """List the files of the package; what ``trainer new`` copies is a user's."""
    return sorted(path for path in PACKAGE.rglob("*.py") if "templates" not in path.parts)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the rooms that a file imports from, each with the line: its own room is left out."""
    own = path.relative_to(PACKAGE).parts
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.ImportFrom) and node.level):
            continue
        folder = own[: len(own) - node.level]
        inside = (node.module or "").split(".") if node.module else []
        for alias in node.names:
            room = (*folder, *inside, alias.name)[0]
            if room != room_of(path):
                yield room, node.lineno


def arrows() -> Arrows:
    found: Arrows = {}
    for path in modules():
        room = room_of(path)
        if room in DOORS:
            continue
        mine = found.setdefault(room, {})
        for other, line in imported_rooms(path):
            mine.setdefault(other, []).append(f"{path.relative_to(PACKAGE)}:{line}")
    return found


def floors(graph: Arrows) -> dict[str, int]:
    """Return the floor of each room, 1 at the bottom.

    Raises:
        graphlib.CycleError: rooms import each other in a circle.
    """
    floor: dict[str, int] = {}
    for room in TopologicalSorter({room: list(below) for room, below in graph.items()}).static_order():
        floor[room] = 1 + max((floor[below] for below in graph.get(room, {})), default=0)
    return floor


def ring_of(path: Path) -> str | None:
    """Return the ring that a file, or else its folder, belongs to; None for an empty ``__init__.py`` of several."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    found: list[str] = []
    for end in range(len(parts), 0, -1):
        name = "/".join(parts[:end])
        found = found or [ring for ring, (members, _) in RINGS.items() if name in members.split()]
    assert len(found) == 1 or (path.name == "__init__.py" and path.stat().st_size == 0), f"{path}: {found}"
    return found[0] if found else None


def lines_of_code(path: Path) -> int:
    """Count the lines of a file that hold code: no blank line, comment or docstring."""
    text = path.read_text()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def rings(count: Callable[[Path], int] = lines_of_code) -> dict[str, int]:
    """Return the lines of each ring."""
    return {ring: sum(count(path) for path in modules() if ring_of(path) == ring) for ring in RINGS}


def main() -> None:
    graph = arrows()
    if sys.argv[1:] == ["arrows"]:
        for room, below in sorted(graph.items()):
            for other, places in sorted(below.items()):
                print(f"{room:12} -> {other:12} {' '.join(places)}")
    try:
        floor = floors(graph)
    except CycleError as error:
        raise SystemExit(f"a circle: {' <- '.join(error.args[1])}") from None
    for number in range(1, max(floor.values()) + 1):
        print(f"{number:2}  {', '.join(sorted(room for room in floor if floor[room] == number))}")
    whole = rings(lambda path: len(path.read_text().splitlines()))
    for ring, count in rings().items():
        limit = f"at most {RINGS[ring][1]:,}, " if RINGS[ring][1] else ""
        print(f"{ring:12} {count:5,} lines of code ({limit}{whole[ring]:,} with docstrings, comments and blank lines)")
    print(f"{len(floor)} rooms, {max(floor.values())} floors, {sum(map(len, graph.values()))} arrows")


if __name__ == "__main__":
    main()
