"""The shape of the package: where strategies may be named, what is public, what is imported, and in
which direction.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import house
import pytest
from launchers import ROOT, clean_environment

import trainer

PACKAGE = ROOT / "trainer"


# What `trainer new` copies is a user's: it imports the package by its name, and may name
# strategies.
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "templates" not in path.parts)

# What a training on one process without trackers, streams, adapters or a launch file has no use
# for.
NOT_LOADED = (
    "strategies.fsdp",
    "strategies.deepspeed",
    "launching.files",
    "data.stream",
    "callbacks.best",
    "callbacks.tracking",
    "checkpoint.restore",
    "callbacks.hub",
    "callbacks.wandb_run",
    "callbacks.profiling",
    "reporting.gpus",
    "commands",
    "rehearsal",
)

# Each costs 0.3 to 3 seconds.
LARGE_PACKAGES = {
    "deepspeed",
    "transformers",
    "datasets",
    "tokenizers",
    "peft",
    "wandb",
    "tensorboard",
}
STARTS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system", "os.exec", "socket.connect"}

STRATEGY_NAME = re.compile(r"\w*(?:deepspeed|fsdp|zero[123])\w*", re.IGNORECASE)
# Files of both programs are told apart, planned and imported by commands of their own. What packages
# do not document, the engines among them, is in a room of its own. A rehearsal replaces functions of
# the engines.
AT_HOME = (
    "launching",
    "strategies",
    "private",
    "check.py",
    "rehearsal",
)
ELSEWHERE = {
    "arguments.py": {
        "deepspeed",
        "deepspeed_config",
    },  # the option that names a JSON, its other spelling, its help
    "started_by.py": {"deepspeed"},  # who starts processes
    "rank_variables.py": {"deepspeed"},
    "run_plan.py": {"deepspeed", "fsdp"},  # settings of the engine that runs
    "load.py": {"deepspeed"},  # the value of that option ...
    "script.py": {"deepspeed"},  # ... on its way to launch()
    "text.py": {"deepspeed"},  # versions of packages in plan.json
    "train_config.py": {"deepspeed"},  # help of the keys that a JSON may hold as well
}


# For imports of types as well: a room imports from rooms before its own arrow, as the table of
# docs/architecture.md is ordered.
WAY = """
errors, text, run_plan, position, private <- config, distributed, metrics, strategies, data <- losses, optim, launching <- task
<- evaluator <- checkpoint <- reporting <- run <- hooks <- checks, callbacks <- row <- building
<- loop <- script, language <- rehearsal <- commands
"""


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
    others = [path for path in MODULES if not set(path.relative_to(PACKAGE).parts) & set(AT_HOME)]
    found = {path.name: named_in(tree) for path, tree in trees(others)}
    assert {name: named for name, named in found.items() if named} == ELSEWHERE


def test_tasks_and_the_one_script_name_no_strategy() -> None:
    paths = [
        ROOT / "examples" / name
        for name in ("train.py", "digits_cnn.py", "llama_stdlib.py", "bert_classifier.py")
    ]
    assert {path.name: named_in(tree) for path, tree in trees(paths)} == {
        path.name: set() for path in paths
    }


def test_public_names() -> None:
    rooms = {house.room_of(path) for path in MODULES}
    assert not rooms & set(trainer.__all__), (
        "importing a module of that name would hide the public one"
    )
    assert all(getattr(trainer, name).__name__ == name for name in trainer.__all__)
    assert dir(trainer) == trainer.__all__
    with pytest.raises(AttributeError, match="module 'trainer' has no attribute 'Trainr'"):
        _ = trainer.Trainr


def printed_by(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("trainer, trainer.config.load, trainer.script", "torch accelerate deepspeed transformers"),
        ("trainer.language", "transformers tokenizers datasets peft pyarrow"),
    ],
)
def test_what_is_not_used_is_not_imported(modules: str, absent: str) -> None:
    code = f"import sys, {modules}; print([m for m in {absent.split()} if m in sys.modules])"
    assert printed_by(code) == "[]\n"


def test_imports_point_one_way() -> None:
    groups = [[room.strip() for room in group.split(",")] for group in WAY.split("<-")]
    level = {room: number for number, group in enumerate(groups) for room in group}
    graph = house.arrows()
    assert set(graph) | {"errors", "text", "run_plan", "private"} == set(level), (
        "each room has its place in the sentence"
    )
    upwards = [
        f"{room} imports {other}: {places}"
        for room, below in graph.items()
        for other, places in below.items()
        if level[other] > level[room]
    ]
    assert upwards == []
    house.floors(graph)  # raises where rooms import each other in a circle


def test_no_files_import_each_other_in_a_circle() -> None:
    assert house.circle_of_files() == []


def test_a_plain_training_loads_what_it_uses(tmp_path: Path) -> None:
    """The digits on one process, with a checkpoint: nothing of other strategies, trackers, streams
    or commands.

    Nothing of the large packages beside torch either, and no process or connection is started.
    """
    words = [
        "--config",
        "examples/configs/digits_cnn.yaml",
        "--max_steps",
        "1",
        "--output_dir",
        str(tmp_path / "run"),
    ]
    code = f"""
import sys
starts = []
sys.addaudithook(lambda event, _: starts.append(event) if event in {STARTS} else None)
sys.path.insert(0, "examples")
from trainer.script import train
train({words})
print("packages", *sys.modules.keys() & {LARGE_PACKAGES})
print("processes", *starts)
print(*sorted(name.removeprefix("trainer.") for name in sys.modules if name.startswith("trainer.")))
"""
    *_, packages, processes, last = printed_by(code).splitlines()
    assert (packages, processes) == ("packages", "processes")
    loaded = set(last.split())
    assert "checkpoint.store" in loaded and "strategies.ddp" in loaded
    idle = {
        name
        for name in loaded
        for unused in NOT_LOADED
        if name == unused or name.startswith(f"{unused}.")
    }
    gone = [name for name in NOT_LOADED if not list(PACKAGE.glob(f"{name.replace('.', '/')}*"))]
    assert gone == [], "a name of this list that nobody has any more"
    assert idle == set()


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


def test_no_two_files_share_a_name() -> None:
    """Besides names that Python gives: a file says by its name what stands in it."""
    names = Counter(path.name for path in MODULES)
    given = {"__init__.py", "__main__.py", "base.py"}
    assert {name for name, count in names.items() if count > 1} - given == set()
