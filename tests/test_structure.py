"""The shape of the package: where strategies may be named, what is public, what is imported, and in which direction."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from jobs import ROOT, clean_environment

import trainer

PACKAGE = ROOT / "trainer"
# What `trainer new` copies is a user's: it imports the package by its name, and may name strategies.
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "templates" not in path.parts)

STRATEGY_NAME = re.compile(r"\w*(?:deepspeed|fsdp|zero[123])\w*", re.IGNORECASE)
AT_HOME = ("launching", "strategies", "planner", "external_checkpoint.py")
ELSEWHERE = {
    "arguments.py": {"deepspeed", "deepspeed_config"},  # the option that names a JSON, its other spelling, its help
    "banner.py": {"deepspeed"},  # versions of packages in plan.json
    "check.py": {"deepspeed"},  # its help
    "config.py": {"deepspeed"},  # the value of that option ...
    "script.py": {"deepspeed"},  # ... on its way to launch()
    "train_config.py": {"deepspeed"},  # help of the keys that a JSON may hold as well
}

# From the bottom to the top: a module imports from its own layer and those below, for types from anywhere.
LAYERS = [
    {"errors"},
    {"gpus", "lock", "untrusted"},
    {"documents", "kinds", "schema", "schedule", "train_config", "arguments", "config", "fingerprint"},
    {"items", "data", "stream", "prepare", "metrics", "optim", "task", "tensorfile"},
    {"launching", "strategies"},
    {"control", "rundir", "leave", "ema", "adapters", "export", "banner", "checkpoint"},
    {"callbacks", "meter", "profiling", "tracking", "wandb_run"},
    {"assembly"},
    {"train_state"},
    {"loop"},
    {"script"},
    {"commands"},
    {"cli"},
    {"__main__"},
]


def trees(paths: list[Path]) -> Iterator[tuple[Path, ast.Module]]:
    for path in paths:
        yield path, ast.parse(path.read_text(), filename=str(path))


def words(tree: ast.Module) -> Iterator[str]:
    """Every identifier and text of the code; comments and docstrings are not code."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    blocks = [node.body for node in ast.walk(tree) if isinstance(node, documented)]
    docstrings = {body[0].value for body in blocks if body and isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        if node not in docstrings:
            yield from (value for _, value in ast.iter_fields(node) if isinstance(value, str))


def named_in(tree: ast.Module) -> set[str]:
    return {name.lower() for word in words(tree) for name in STRATEGY_NAME.findall(word)}


def test_strategies_are_named_in_their_own_packages_only() -> None:
    others = [path for path in MODULES if path.parent.name not in AT_HOME]
    found = {path.name: named_in(tree) for path, tree in trees(others)}
    assert {name: named for name, named in found.items() if named} == ELSEWHERE


def test_the_search_for_names_finds_them() -> None:
    code = (
        '"""zero1"""\n# fsdp\ndef zero2_of(x: FSDPModule):\n    """ZeRO3."""\n    return f"{x.Zero3}: no DeepSpeed"\n'
    )
    assert named_in(ast.parse(code)) == {"zero2_of", "fsdpmodule", "zero3", "deepspeed"}


def test_tasks_and_the_one_script_name_no_strategy() -> None:
    paths = [
        ROOT / "examples" / name for name in ("train.py", "digits_cnn.py", "llama_stdlib.py", "bert_classifier.py")
    ]
    assert {path.name: named_in(tree) for path, tree in trees(paths)} == {path.name: set() for path in paths}


def test_public_names() -> None:
    [(_, tree)] = trees([PACKAGE / "__init__.py"])
    for_checkers = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert trainer.__all__ == sorted(for_checkers), "what type checkers see is what can be imported"
    assert all(getattr(trainer, name).__name__ == name for name in trainer.__all__)
    assert dir(trainer) == trainer.__all__
    with pytest.raises(AttributeError, match="module 'trainer' has no attribute 'Trainr'"):
        _ = trainer.Trainr


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("trainer, trainer.config.load, trainer.main", "torch accelerate deepspeed transformers"),
        ("trainer.loop, trainer.launching, trainer.strategies", "deepspeed transformers datasets wandb"),
    ],
)
def test_what_is_not_used_is_not_imported(modules: str, absent: str) -> None:
    code = f"import sys, {modules}; print([m for m in {absent.split()} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def imports(path: Path, tree: ast.Module) -> Iterator[str]:
    """The modules and packages of ours that a file imports when it runs."""
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    depth = len(path.relative_to(PACKAGE).parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == depth and node not in for_types:
            yield from [node.module.split(".")[0]] if node.module else [alias.name for alias in node.names]


def test_imports_point_one_way() -> None:
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    graph: dict[str, set[str]] = {}
    for path, tree in trees([path for path in MODULES if path != PACKAGE / "__init__.py"]):
        name = path.relative_to(PACKAGE).with_suffix("").parts[0]
        graph.setdefault(name, set()).update(imports(path, tree))
    assert set(graph) == set(level), "each module belongs to a layer"
    upwards = [f"{name} imports {other}" for name in graph for other in graph[name] if level[other] > level[name]]
    assert upwards == []
    assert list(TopologicalSorter(graph).static_order()), "no circle within a layer either"


def test_the_package_imports_itself_relatively() -> None:
    """So that the directions above are all there are."""
    names = [
        name
        for _, tree in trees(MODULES)
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom) and not node.level
            else []
        )
    ]
    assert "torch" in names and not [name for name in names if name.split(".")[0] == "trainer"]
