"""The files of examples/clusters: each can be read, names what there is, and stands on the page."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from launchers import ROOT, STRATEGIES

from trainer.launching.files.accelerate_file import read_accelerate_file

FOLDER = ROOT / "examples" / "clusters"
FILES = sorted(
    path for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts
)
PAGE = (ROOT / "docs" / "clusters.md").read_text()
# What runs on another machine: names of files of this repository, with a strategy's in the place of
# its variable.
NAMED = re.compile(
    r"\b(?:examples|accel_configs|ds_configs)/[\w./{}$:-]*\.(?:py|yaml|json|sh|sbatch)"
)


def code_of_notebook(text: str) -> str:
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return "\n".join(
        line for cell in cells for line in "".join(cell["source"]).splitlines() if line[:1] != "%"
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_file_can_be_read_and_names_what_there_is(path: Path) -> None:
    text = path.read_text()
    if path.suffix == ".yaml":
        assert isinstance(yaml.safe_load(text), dict)
    elif path.suffix in (".sh", ".sbatch"):
        subprocess.run(["bash", "-n", str(path)], check=True)
        assert path.stat().st_mode & 0o111 or path.suffix == ".sbatch", (
            "the page starts it as a program"
        )
    elif path.suffix in (".py", ".ipynb"):
        ast.parse(code_of_notebook(text) if path.suffix == ".ipynb" else text)
    named = [re.sub(r"\$\{?STRATEGY(:-\w+)?\}?", "zero2", name) for name in NAMED.findall(text)]
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_file_stands_on_the_page() -> None:
    shown = {path.relative_to(FOLDER).as_posix() for path in FILES if path.parent == FOLDER}
    assert sorted(name for name in shown if name not in PAGE) == []
    assert {path.stem for path in FILES if path.parent.name == "determined"} == set(STRATEGIES)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_files_without_a_number_of_processes_are_the_committed_ones(strategy: str) -> None:
    committed = read_accelerate_file(ROOT / "accel_configs" / f"{strategy}.yaml")
    anywhere = read_accelerate_file(FOLDER / "accel_configs" / f"{strategy}.yaml")
    assert anywhere.world_size is None and committed.world_size is not None
    for name in ("strategy", "fsdp", "deepspeed", "mixed_precision", "notices"):
        assert getattr(anywhere, name) == getattr(committed, name)


def experiment(strategy: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / "determined" / f"{strategy}.yaml").read_text()))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_experiments_differ_in_their_strategy_alone(strategy: str) -> None:
    assert json.dumps(experiment("ddp")).replace("ddp", strategy) == json.dumps(
        experiment(strategy)
    )
