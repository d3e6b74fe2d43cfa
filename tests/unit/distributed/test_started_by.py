"""Who started this process: read from made-up command lines."""

from __future__ import annotations

import os

import pytest

from trainer.distributed import started_by
from trainer.distributed.started_by import Launcher
from trainer.errors import LaunchError

PYTHON = "/home/me/.venv/bin/python3.11"
RANKS = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
FLAGS = ("--config_file", "zero3.yaml", "train.py", "--lr", "1e-3")
SHELL = ["/bin/bash"]


def detect(environment: dict[str, str], ancestors: list[list[str]]) -> Launcher:
    """Detect the launcher of a process with these variables and these command lines above."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", {**environment})
        patch.setattr(started_by, "_parents", lambda: ancestors)
        return started_by.detect()


@pytest.mark.parametrize(
    "line",
    [
        [PYTHON, "/home/me/.venv/bin/accelerate", "launch", *FLAGS],
        ["accelerate", "launch", *FLAGS],
        [PYTHON, "-m", "accelerate.commands.launch", *FLAGS],
        [PYTHON, "-X", "dev", "-Wignore", "-um", "accelerate.commands.launch", *FLAGS],
        [PYTHON, "/site-packages/accelerate/commands/launch.py", *FLAGS],
    ],
)
def test_accelerate_with_what_was_typed(line: list[str]) -> None:
    found = detect(RANKS, [line, SHELL])
    assert found == Launcher(
        name="accelerate",
        arguments=FLAGS,
        world_size=4,
        local_rank=1,
        local_world_size=2,
    )


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ([PYTHON, "/home/me/.venv/bin/torchrun", "--nproc_per_node", "4", "train.py"], "torchrun"),
        ([PYTHON, "-m", "torch.distributed.run", "--nproc_per_node", "4", "train.py"], "torchrun"),
        (
            [PYTHON, "-u", "-m", "deepspeed.launcher.launch", "--world_info=e30=", "train.py"],
            "deepspeed",
        ),
        ([PYTHON, "/home/me/.venv/bin/deepspeed", "--num_gpus", "4", "train.py"], "deepspeed"),
    ],
)
def test_other_launchers(line: list[str], name: str) -> None:
    found = detect(RANKS, [line, SHELL])
    assert (found.name, found.arguments) == (name, ())
    assert (found.world_size, found.local_rank, found.local_world_size) == (4, 1, 2)


@pytest.mark.parametrize(
    "lines",
    [
        [],  # the system hides them
        [SHELL, ["/usr/sbin/sshd", "-D"]],
        [[PYTHON, "-m", "pytest", "tests"], SHELL],
        # The nearest program decides: a script that was itself launched starts plain Python.
        [[PYTHON, "sweep.py"], ["accelerate", "launch", "sweep.py"]],
        # Arguments are not programs.
        [[PYTHON, "sweep.py", "deepspeed"], SHELL],
        [["vim", "torchrun"], SHELL],
        [["accelerate", "test"], SHELL],
    ],
)
def test_plain_python(lines: list[list[str]]) -> None:
    assert detect({}, lines) == Launcher(name="python")


@pytest.mark.parametrize(
    "environment",
    [
        {"WORLD_SIZE": "8"},
        {"WORLD_SIZE": "8", "MASTER_ADDR": "node1"},
        {"RANK": "1"},
        {"PMI_SIZE": "16", "PMI_RANK": "15"},
        {"OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_RANK": "15"},
        {"SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "15"},
    ],
)
def test_several_processes_that_would_each_train_alone_are_refused(
    environment: dict[str, str],
) -> None:
    with pytest.raises(LaunchError, match="do not know each other: set RANK, WORLD_SIZE and"):
        detect(environment, [SHELL])


@pytest.mark.parametrize(
    "environment",
    [
        {"WORLD_SIZE": "1"},
        {"RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {},
    ],
)
def test_variables_of_one_process_may_stand_alone(environment: dict[str, str]) -> None:
    assert detect(environment, [SHELL]).world_size == 1


# Several processes on several machines: what each launcher says to the last process of two machines
# with eight.

TORCHRUN = {
    "RANK": "15",
    "LOCAL_RANK": "7",
    "WORLD_SIZE": "16",
    "LOCAL_WORLD_SIZE": "8",
}
DEEPSPEED = {
    "RANK": "15",
    "LOCAL_RANK": "7",
    "WORLD_SIZE": "16",
    "LOCAL_SIZE": "8",
}
# As slurmstepd sets it, and what an allocation has already: the batch script and salloc's shell see
# the latter alone.
BATCH = {
    "SLURM_JOB_ID": "4711",
    "SLURM_NTASKS": "16",
    "SLURM_NTASKS_PER_NODE": "8",
    "SLURM_TASKS_PER_NODE": "8(x2)",
    "SLURM_NODELIST": "gpu[03,05]",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
SRUN = BATCH | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[03,05]",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
    "SLURM_PROCID": "15",
    "SLURM_LOCALID": "7",
    "SLURM_NODEID": "1",
    "PMI_RANK": "15",  # srun --mpi=pmi2
    "PMI_SIZE": "16",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "16",
    "OMPI_COMM_WORLD_RANK": "15",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "7",
    "PMIX_NAMESPACE": "prterun-gpu03-1@1",
}
HYDRA = {"PMI_SIZE": "16", "PMI_RANK": "15", "MPI_LOCALNRANKS": "8", "MPI_LOCALRANKID": "7"}
HEAD = {"MASTER_ADDR": "gpu03"}
BY_TORCHRUN = [["torchrun", "--nnodes=2", "train.py"]]
BY_DEEPSPEED = [[PYTHON, "-u", "-m", "deepspeed.launcher.launch", "train.py"]]


@pytest.mark.parametrize(
    ("environment", "lines", "name"),
    [
        (TORCHRUN, BY_TORCHRUN, "torchrun"),
        (DEEPSPEED, BY_DEEPSPEED, "deepspeed"),
        (SRUN | HEAD, [["slurmstepd: [4711.0]"]], "srun"),
        (OPEN_MPI | HEAD, [["prted"]], "mpirun"),
        (HYDRA | HEAD, [["hydra_pmi_proxy"]], "mpirun"),
        # One starts through another: each says how many it started.
        (TORCHRUN | BATCH | SRUN | {"SLURM_STEP_NUM_TASKS": "2"}, BY_TORCHRUN, "torchrun"),
        (
            OPEN_MPI
            | HEAD
            | SRUN
            | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"},
            [],
            "mpirun",
        ),
        # A script that says the ranks itself, and not how many there are on a machine.
        ({"RANK": "15", "LOCAL_RANK": "7", "WORLD_SIZE": "16"} | HEAD | SRUN, [], "srun"),
    ],
)
def test_two_machines_with_eight_processes_each(
    environment: dict[str, str], lines: list[list[str]], name: str
) -> None:
    assert detect(environment, lines) == Launcher(
        name=name, world_size=16, local_rank=7, local_world_size=8
    )


def test_machines_with_different_numbers_of_processes() -> None:
    last = {
        "SLURM_STEP_NUM_TASKS": "20",
        "SLURM_STEP_TASKS_PER_NODE": "8(x2),4",
        "SLURM_NODEID": "2",
    }
    found = detect(SRUN | HEAD | last | {"SLURM_PROCID": "19", "SLURM_LOCALID": "3"}, [])
    assert (found.world_size, found.local_world_size) == (20, 0)


def test_ranks_of_an_unknown_launcher_leave_the_machine_open() -> None:
    found = detect(
        {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1"}, [["/usr/local/bin/agent"]]
    )
    assert found == Launcher(name="environment", world_size=2, local_rank=0, local_world_size=0)


@pytest.mark.parametrize(
    "shell", [BATCH, BATCH | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}]
)
def test_python_in_an_allocation_is_one_process(shell: dict[str, str]) -> None:
    """sbatch's script and salloc's shell know how many tasks a step will have; salloc's may be a
    step of one itself.
    """
    assert detect(shell, [["/bin/bash", "job.sh"], ["slurmstepd: [4711.batch]"]]) == Launcher(
        name="python"
    )
    for one in (
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"PMI_SIZE": "1", "PMI_RANK": "0"},
    ):
        assert detect(one, []).name == "python"


def connected_by(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the processes of a job connect by, after they looked for their launcher."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(started_by, "_parents", list)
    started_by.detect()
    assert started_by.detect() == detect(environment | HEAD, []), (
        "the second launch finds what the first did"
    )
    return {name: os.environ[name] for name in names}


def test_ranks_of_srun_connect_at_the_address_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"RANK": "15", "LOCAL_RANK": "7", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
    assert connected_by(SRUN | HEAD, monkeypatch) == ranks | HEAD | {"MASTER_PORT": "29500"}
    port = {"MASTER_PORT": "29501"}
    assert connected_by(SRUN | HEAD | port, monkeypatch) == ranks | HEAD | port


def test_mpirun_on_one_machine_connects_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    here = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "15"}
    found = connected_by(here, monkeypatch)
    assert (found["MASTER_ADDR"], found["RANK"]) == ("127.0.0.1", "15")
