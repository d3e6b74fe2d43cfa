"""The files of examples/clusters: each can be read, names what there is, and stands on the page."""

from __future__ import annotations

import ast
import json
import math
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from launchers import ROOT, STRATEGIES

from trainer import Plan
from trainer.config.load import load_config
from trainer.distributed.started_by import Launcher
from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.launching.files.deepspeed_file import read_deepspeed_file
from trainer.launching.resolve import resolve

FOLDER = ROOT / "examples/clusters"
FILES = sorted(
    path for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts
)
PAGE = (ROOT / "docs/clusters.md").read_text()
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
    committed = read_accelerate_file(ROOT / f"accel_configs/{strategy}.yaml")
    anywhere = read_accelerate_file(FOLDER / f"accel_configs/{strategy}.yaml")
    assert anywhere.world_size is None and committed.world_size is not None
    for name in ("strategy", "fsdp", "deepspeed", "settings", "notices"):
        assert getattr(anywhere, name) == getattr(committed, name)


def experiment(strategy: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / f"determined/{strategy}.yaml").read_text()))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_experiments_differ_in_their_strategy_alone(strategy: str) -> None:
    assert json.dumps(experiment("ddp")).replace("ddp", strategy) == json.dumps(
        experiment(strategy)
    )


STARTING = [
    path
    for path in FILES
    if path.suffix in (".sh", ".sbatch", ".yaml", ".py")
    and path.parent.name != "accel_configs"
    and path.name not in ("skypilot_volume.yaml", "kubeflow_train.py", "determined_train.py")
]
# How many machines, how many processes on each, or how many in all.
COUNT = re.compile(
    r"(?:MACHINES:-|PROCESSES:-|SHAPE:-1x|nodes[:=] ?|tasks-per-node=|numNodes: |numProcPerNode: "
    r"|H100:|slots_per_trial: |(?:workers|processes)\", type=int, default=)(\d+)"
)


def plan_of(names: set[str], world: int) -> Plan:
    """Return the plan of the training of a config and a launch file, on 8 GPUs a machine."""
    [config] = [name for name in names if "examples/configs/" in name]
    loaded = load_config(["--config", config])
    request = None
    for name in names:
        if "accel_configs/" in name:
            request = read_accelerate_file(ROOT / name)
        elif name.startswith("ds_configs/"):
            request = read_deepspeed_file(ROOT / name)
    launcher = Launcher(name="torchrun", world_size=world, local_world_size=min(world, 8))
    return resolve(loaded.config, request, launcher, 8, loaded.origins)


@pytest.mark.parametrize("path", STARTING, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_file_starts_a_training_with_its_own_defaults(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the variables of its shell; ``make clusters`` runs the files themselves."""
    monkeypatch.chdir(ROOT)
    text = path.read_text()
    for strategy in re.findall(r"STRATEGY(?::-|=|: )(\w+)", text):
        text = re.sub(r"\$STRATEGY|\$\{STRATEGY:-\w+\}", strategy, text)
    expected = 2 if path.name in ("torchx.sh", "ray_train.py", "kubeflow_local.py") else 16
    if path.name == "deepspeed.sh":
        slots = re.findall(r"slots=(\d+)", (FOLDER / "hostfile").read_text())
        assert sum(map(int, slots)) == expected
    else:
        assert math.prod(map(int, COUNT.findall(path.read_text()))) == expected
    plan = plan_of({*NAMED.findall(text)}, expected)
    assert (plan.world_size, plan.global_batch_size) == (expected, 64)


@pytest.mark.parametrize("world", [1, 2, 8, 16])
@pytest.mark.parametrize("path", sorted((ROOT / "examples/configs").glob("*.yaml")))
def test_a_config_starts_on_any_number_of_processes(path: Path, world: int) -> None:
    plan = plan_of({str(path)}, world)
    keeps_its_batch = load_config(["--config", str(path)]).config.global_batch_size
    assert plan.global_batch_size == (keeps_its_batch or plan.micro_batch_size * world)


def test_dstack_starts_no_wrong_config_again() -> None:
    """Event ``error`` is every exit code but 0, so a wrong key would be tried for a day."""
    retry = yaml.safe_load((FOLDER / "dstack.yaml").read_text())["retry"]
    assert "error" not in retry["on_events"]
