"""Each file of tests/jobs says on top what it promises, and which of its tests show that."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from launchers import ROOT

FILES = sorted((ROOT / "tests/jobs").glob("test_*.py"))
HEAD = ["| promised | strategies and worlds | tests |", "|---|---|---|"]


def table_of(module: ast.Module) -> list[list[str]]:
    """Return the cells of each row of the table in a docstring, without its head."""
    lines = (ast.get_docstring(module) or "").splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert rows[:2] == HEAD
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def functions_of(module: ast.Module) -> list[str]:
    """Return the names of the test functions of a file."""
    functions = [node.name for node in module.body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if name.startswith("test_")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_table_on_top_names_every_test_of_its_file(path: Path) -> None:
    module = ast.parse(path.read_text())
    rows = table_of(module)
    assert rows and all(len(row) == 3 and all(row) for row in rows)

    named = [name for row in rows for name in re.split(r",\s*", row[2])]
    assert sorted(named) == sorted(functions_of(module))
