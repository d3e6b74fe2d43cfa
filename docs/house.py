"""Print the shape of the package: floors, rooms and arrows.

    python docs/house.py            # the figures of docs/architecture.md
    python docs/house.py arrows     # every import between rooms, with the file that has it

A room is a file or a folder directly in ``trainer/``. An arrow leads from a room to one that it
imports, for types or at run time, at the top of a file or inside a function. A floor is the length
of the longest way down. Neither rooms nor files may import each other in a circle.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "trainer"
# The names that `import trainer` offers and the two ways to start a command lead anywhere, and are
# no rooms.
DOORS = ("__init__", "__main__")
Arrows = dict[
    str, dict[str, list[str]]
]  # room -> room that it imports -> "file:line" of each import


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


def imported_files(path: Path) -> Iterator[Path]:
    """Yield the files of the package that a file imports; a package is its ``__init__.py``."""
    own = path.relative_to(PACKAGE).parts
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.ImportFrom) and node.level):
            continue
        module = PACKAGE.joinpath(*own[: len(own) - node.level], *(node.module or "").split("."))
        for alias in node.names:
            # A name is a module of the package, or is defined in the module or its __init__.
            found = file_of(module / alias.name) or file_of(module)
            if found is not None:
                yield found


def file_of(module: Path) -> Path | None:
    """Return the file of a module or package; None where there is no such module."""
    for path in (module.with_suffix(".py"), module / "__init__.py"):
        if path.is_file():
            return path
    return None


def circle_of_files() -> list[str]:
    """Return the files of a circle of imports, of which each imports the next; empty without one.

    Imports for types and inside of functions count.
    """
    graph = {path: set(imported_files(path)) - {path} for path in modules()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        # graphlib gives each file before the one that imports it.
        return [str(path.relative_to(PACKAGE)) for path in reversed(error.args[1])]
    return []


def floors(graph: Arrows) -> dict[str, int]:
    """Return the floor of each room, 1 at the bottom.

    Raises:
        graphlib.CycleError: rooms import each other in a circle.
    """
    floor: dict[str, int] = {}
    for room in TopologicalSorter(
        {room: list(below) for room, below in graph.items()}
    ).static_order():
        floor[room] = 1 + max((floor[below] for below in graph.get(room, {})), default=0)
    return floor


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
    circle = circle_of_files()
    if circle:
        raise SystemExit(f"a circle of files: {' -> '.join(circle)}")
    for number in range(1, max(floor.values()) + 1):
        print(f"{number:2}  {', '.join(sorted(room for room in floor if floor[room] == number))}")
    print(
        f"{len(floor)} rooms, {max(floor.values())} floors, {sum(map(len, graph.values()))} arrows"
    )


if __name__ == "__main__":
    main()
