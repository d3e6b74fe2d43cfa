"""Names that ``import trainer`` offers."""

from __future__ import annotations

import ast
from pathlib import Path

import trainer


def test_type_checkers_read_the_same_public_names() -> None:
    stub = Path(trainer.__file__).with_suffix(".pyi")
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, "which makes it public for type checkers"
            assert hasattr(trainer, alias.name)
