"""No file outside of ``trainer/private/`` uses a private name of another package."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import house
import pytest

# Python documents these under their names. The others are of named tuples.
DOCUMENTED = {"os._exit", "sys._current_frames"}
OF_NAMED_TUPLES = {"_asdict", "_replace", "_fields"}
OWN = ("self", "cls")  # objects whose private attributes a method may use
BY_NAME = {"getattr", "setattr", "hasattr", "delattr"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_NAMED_TUPLES


def private_names(tree: ast.Module) -> Iterator[str]:
    """Yield the private names of other objects, modules and packages that a file uses.

    An attribute (``module._buffers``, also by its name as a text in ``getattr``), an import, and
    ``self`` and ``cls`` have none. Neither do objects of a class in the same file.
    """
    own = set(own_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            used = [node.attr] if not is_own(node.value) else []
        elif isinstance(node, ast.ImportFrom) and not node.level:
            used = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.ImportFrom):
            used = [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            used = [part for alias in node.names for part in alias.name.split(".")]
        elif is_by_name(node):
            used = [node.args[1].value]
        else:
            used = []

        text = ast.unparse(node)
        if text not in DOCUMENTED and any(is_private(name) and name not in own for name in used):
            yield text


def is_own(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in OWN


def is_by_name(node: ast.AST) -> bool:
    """Return whether a node is a call such as ``getattr(value, "name")``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in BY_NAME
        and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
        and isinstance(node.args[1].value, str)
    )


def own_names(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that the classes of a file define."""
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.ClassDef):
            continue
        for node in ast.walk(scope):
            if isinstance(node, ast.FunctionDef):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if is_own(node.value):
                    yield node.attr


def test_private_names_of_other_packages_are_in_one_room() -> None:
    found = {}
    for path in house.modules():
        # A rehearsal replaces what torch and the engines keep to themselves.
        if house.room_of(path) in ("private", "rehearsal"):
            continue
        names = [*private_names(ast.parse(path.read_text()))]
        if names:
            found[str(path.relative_to(house.PACKAGE))] = names
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        "module._buffers",
        "module._buffers['key'] = value",
        "getattr(module, '_buffers', None)",
        "hasattr(module, '_buffers')",
        "import torch._dynamo",
        "from torch._subclasses import fake_tensor",
        "from torch.nn.modules.dropout import _DropoutNd",
        "from ..room.file import _function",
        "sys._getframe()",
        "class Own:\n    def f(self):\n        self.module._buffers",
    ],
)
def test_a_private_name_is_seen(code: str) -> None:
    assert [*private_names(ast.parse(code))] != []


@pytest.mark.parametrize(
    "code",
    [
        "module.buffers",
        "module.__dict__",
        "getattr(module, 'buffers')",
        "from . import file",
        "os._exit(1)",
        "class Own:\n    def f(self, other):\n        self._number = other._number",
        "class Own:\n    _number = 0\n\ndef f(own):\n    return own._number",
    ],
)
def test_public_and_own_names_are_no_finding(code: str) -> None:
    assert [*private_names(ast.parse(code))] == []
