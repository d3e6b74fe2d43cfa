"""The files of examples/clusters: each can be read, names what there is, and stands on the page."""

from __future__ import annotations

import ast
import json
import os
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
    for name in ("strategy", "fsdp", "deepspeed", "settings", "notices"):
        assert getattr(anywhere, name) == getattr(committed, name)


def experiment(strategy: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / "determined" / f"{strategy}.yaml").read_text()))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_experiments_differ_in_their_strategy_alone(strategy: str) -> None:
    assert json.dumps(experiment("ddp")).replace("ddp", strategy) == json.dumps(
        experiment(strategy)
    )


def words_of_shell(text: str, folder: Path, **variables: str) -> list[str]:
    """Return the command line that a shell text starts, from programs that only print theirs."""
    for program in ("accelerate", "deepspeed", "torchrun", "torchx", "srun"):
        (folder / program).write_text(f'#!/bin/sh\nprintf "%s\\n" {program} "$@"\n')
        (folder / program).chmod(0o755)
    (folder / "scontrol").write_text("#!/bin/sh\necho node1\n")
    (folder / "scontrol").chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["bash", "-c", text], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def option(words: list[str], name: str) -> int:
    return int(words[words.index(name) + 1])


def started_by_script(path: Path, folder: Path) -> tuple[int, list[str]]:
    """Return the number of processes that a file starts by default, and its command line."""
    text = path.read_text()
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    words = words_of_shell(text, folder, MACHINE="0", FIRST="node1", **slurm)
    if path.name == "accelerate.sh":
        return option(words, "--num_processes"), words
    if path.name == "deepspeed.sh":
        slots = re.findall(r"slots=(\d+)", Path(words[words.index("--hostfile") + 1]).read_text())
        return sum(map(int, slots)), words
    if path.name == "torchx.sh":
        machines, processes = words[words.index("-j") + 1].split("x")
        return int(machines) * int(processes), words
    if path.name == "slurm_ranks.sbatch":
        asked = dict(re.findall(r"^#SBATCH --([\w-]+)=(\d+)", text, re.MULTILINE))
        return int(asked["nodes"]) * int(asked["ntasks-per-node"]), words
    return option(words, "--nnodes") * option(words, "--nproc_per_node"), words


def started_by_manifest(path: Path, folder: Path) -> tuple[int, list[str]]:
    content = yaml.safe_load(path.read_text())
    if path.parent.name == "determined":
        return content["resources"]["slots_per_trial"], content["entrypoint"].split()
    if path.name == "kubeflow.yaml":
        container = content["spec"]["trainer"]
        return container["numNodes"] * container["numProcPerNode"], container["args"]
    if path.name == "skypilot.yaml":
        nodes, gpus = content["num_nodes"], content["resources"]["accelerators"]
        text, settings = content["run"], content["envs"]
        prefix = "SKYPILOT"
    else:
        nodes, gpus = content["nodes"], content["resources"]["gpu"]
        text, settings = content["commands"][1], dict(line.split("=") for line in content["env"])
        prefix = "DSTACK"
    each = gpus.split(":")[1]
    variables = {"SKYPILOT_NODE_IPS": "node1\nnode2", "DSTACK_MASTER_NODE_IP": "node1"}
    variables |= {f"{prefix}_NODE_RANK": "0", "SKYPILOT_NUM_NODES": str(nodes)}
    variables |= {"DSTACK_NODES_NUM": str(nodes), "SKYPILOT_NUM_GPUS_PER_NODE": each}
    words = words_of_shell(text, folder, **variables, **settings, DSTACK_GPUS_PER_NODE=each)
    return option(words, "--nnodes") * option(words, "--nproc_per_node"), words


def started_by_python(path: Path, folder: Path) -> tuple[int, list[str]]:
    """Return the defaults of ray_train.py and kubeflow_local.py, which start the processes."""
    text = path.read_text()
    [count] = re.findall(r'"--(?:workers|processes)", type=int, default=(\d+)', text)
    [config] = re.findall(r'"--config", default="([^"]+)"', text)
    return int(count), ["--config", config]


STARTED = {
    **dict.fromkeys((".sh", ".sbatch"), started_by_script),
    ".yaml": started_by_manifest,
    ".py": started_by_python,
}
STARTING = [
    path
    for path in FILES
    if path.suffix in STARTED
    and path.parent.name != "accel_configs"
    and path.name not in ("skypilot_volume.yaml", "kubeflow_train.py", "determined_train.py")
]


def plan_of(words: list[str], world: int) -> Plan:
    """Return the plan of the training that a command line starts, on 8 GPUs a machine."""
    kept = {"--config": "", "--accel_config": "", "--deepspeed": "", "--config_file": ""}
    kept |= {key: words[words.index(key) + 1] for key in kept if key in words}
    loaded = load_config(["--config", kept["--config"]])
    launch_file = kept["--accel_config"] or kept["--config_file"]
    request = read_accelerate_file(ROOT / launch_file) if launch_file else None
    if kept["--deepspeed"]:
        request = read_deepspeed_file(ROOT / kept["--deepspeed"])
    machines = max(1, world // 8)
    launcher = Launcher(
        name="torchrun",
        world_size=world,
        local_world_size=world // machines,
    )
    return resolve(loaded.config, request, launcher, 8, loaded.origins)


@pytest.mark.parametrize("path", STARTING, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_file_starts_a_training_with_its_own_defaults(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    world, words = STARTED[path.suffix](path, tmp_path)
    expected = 2 if path.name in ("torchx.sh", "ray_train.py", "kubeflow_local.py") else 16
    assert world == expected
    plan = plan_of(words, world)
    assert (plan.world_size, plan.global_batch_size) == (expected, 64)


@pytest.mark.parametrize("world", [1, 2, 8, 16])
@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "configs").glob("*.yaml")))
def test_a_config_starts_on_any_number_of_processes(path: Path, world: int) -> None:
    plan = plan_of(["--config", str(path)], world)
    keeps_its_batch = load_config(["--config", str(path)]).config.global_batch_size
    assert plan.global_batch_size == (keeps_its_batch or plan.micro_batch_size * world)


def test_dstack_starts_no_wrong_config_again() -> None:
    """Event ``error`` is every exit code but 0, so a wrong key would be tried for a day."""
    retry = yaml.safe_load((FOLDER / "dstack.yaml").read_text())["retry"]
    assert "error" not in retry["on_events"]
