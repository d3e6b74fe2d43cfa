"""Who started this process: read from made-up command lines."""

from __future__ import annotations

import pytest

from trainer.distributed.launcher import Launcher, detect
from trainer.errors import LaunchError

PYTHON = "/home/me/.venv/bin/python3.11"
RANKS = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
FLAGS = ("--config_file", "zero3.yaml", "train.py", "--lr", "1e-3")
SHELL = ["/bin/bash"]


@pytest.mark.parametrize(
    "line",
    [
        [PYTHON, "/home/me/.venv/bin/accelerate", "launch", *FLAGS],
        ["accelerate", "launch", *FLAGS],
        [PYTHON, "/home/me/.venv/bin/accelerate-launch", *FLAGS],
        [PYTHON, "-m", "accelerate.commands.launch", *FLAGS],
        [PYTHON, "-u", "-m", "accelerate.commands.accelerate_cli", "launch", *FLAGS],
        [PYTHON, "-X", "dev", "-Wignore", "-um", "accelerate.commands.launch", *FLAGS],
        [PYTHON, "/site-packages/accelerate/commands/launch.py", *FLAGS],
    ],
)
def test_accelerate_with_what_was_typed(line: list[str]) -> None:
    found = detect(RANKS, [line, SHELL])
    assert found == Launcher(
        name="accelerate", arguments=FLAGS, world_size=4, rank=3, local_rank=1, local_world_size=2
    )  # fmt: skip


def test_accelerate_alone_sets_no_ranks() -> None:
    assert detect({}, [["accelerate", "launch", *FLAGS]]) == Launcher(name="accelerate", arguments=FLAGS)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ([PYTHON, "/home/me/.venv/bin/torchrun", "--nproc_per_node", "4", "train.py"], "torchrun"),
        ([PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", "4", "train.py"], "torchrun"),
        ([PYTHON, "-m", "torch.distributed.launch", "train.py"], "torchrun"),
        ([PYTHON, "/site-packages/torch/distributed/run.py", "train.py"], "torchrun"),
        ([PYTHON, "-u", "-m", "deepspeed.launcher.launch", "--world_info=e30=", "train.py"], "deepspeed"),
        ([PYTHON, "/home/me/.venv/bin/deepspeed", "--num_gpus", "4", "train.py"], "deepspeed"),
    ],
)
def test_other_launchers(line: list[str], name: str) -> None:
    found = detect(RANKS, [line, SHELL])
    assert (found.name, found.arguments) == (name, ())
    assert (found.world_size, found.rank, found.local_rank, found.local_world_size) == (4, 3, 1, 2)


@pytest.mark.parametrize(
    "lines",
    [
        [],  # the system hides them
        [SHELL, ["/usr/sbin/sshd", "-D"]],
        [[PYTHON, "-m", "pytest", "tests"], SHELL],
        [[PYTHON, "-c", "import subprocess; ..."], SHELL],
        # The nearest program decides: a script that was itself launched starts plain Python.
        [[PYTHON, "sweep.py"], ["accelerate", "launch", "sweep.py"]],
        # Arguments are not programs.
        [[PYTHON, "sweep.py", "deepspeed"], SHELL],
        [[PYTHON, "-m", "pytest", "tests/deepspeed"], SHELL],
        [["vim", "torchrun"], SHELL],
        [["accelerate", "test"], SHELL],
        [["accelerate"], SHELL],
    ],
)
def test_plain_python(lines: list[list[str]]) -> None:
    assert detect({}, lines) == Launcher(name="python")


def test_a_stray_world_size_starts_no_processes() -> None:
    assert detect({"WORLD_SIZE": "8"}, [SHELL]) == Launcher(name="python")


def test_shells_and_inline_code_stand_between() -> None:
    lines = [["/bin/sh", "-c", "python train.py"], [PYTHON, "-c", "..."], ["torchrun", "wrapper.sh"]]
    assert detect(RANKS, lines).name == "torchrun"


def test_ranks_without_a_known_launcher() -> None:
    """srun and mpirun start one process a rank; whoever sets RANK and WORLD_SIZE for them is the launcher."""
    found = detect({"RANK": "1", "WORLD_SIZE": "2"}, [["slurmstepd: [42.0]"], ["/usr/sbin/slurmd"]])
    assert (found.name, found.world_size, found.rank, found.local_world_size) == ("environment", 2, 1, 2)


@pytest.mark.parametrize(
    ("name", "starter"), [("SLURM_STEP_NUM_TASKS", "srun"), ("OMPI_COMM_WORLD_SIZE", "mpirun"), ("PMI_SIZE", "mpirun")]
)
def test_processes_that_do_not_know_each_other(name: str, starter: str) -> None:
    with pytest.raises(LaunchError, match=f"{starter} starts 2 processes"):
        detect({name: "2"}, [])
    assert detect({name: "1"}, []).name == "python"
    assert detect({name: "2", "RANK": "1", "WORLD_SIZE": "2"}, []).name == "environment"
