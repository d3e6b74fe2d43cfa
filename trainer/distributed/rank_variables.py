"""Ranks that come from srun, mpirun, or the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from ..errors import LaunchError

Name = Literal["python", "accelerate", "torchrun", "deepspeed", "srun", "mpirun", "environment"]
# The variables by which torchrun gives a process its rank.
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")

# The same variables of programs that start a process for each rank. mpirun comes first: mpirun may
# start daemons by srun, and the ranks inherit srun's variables. Slurm counts the tasks of a step
# only in processes that srun starts: the shell of salloc and the script of sbatch are no ranks.
_STARTERS: tuple[tuple[Name, tuple[str, ...]], ...] = (
    (
        "mpirun",
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
    ),
    ("mpirun", ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS")),
    (
        "srun",
        ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
    ),
)


def by_starter(env: Mapping[str, str]) -> tuple[Name, dict[str, str]]:
    """Return which program started the ranks, and the ranks by torchrun's names."""
    started = [row for row in _STARTERS if env.get(row[1][2], "1") != "1"]
    for starter, variables in started:
        if variables[1] in env:
            return starter, _ranks_of(starter, variables, env)
    if "RANK" in env and "WORLD_SIZE" in env:
        return "environment", {"LOCAL_RANK": "0"}
    # Each process would train alone.
    if started or env.get("RANK", "0") != "0" or env.get("WORLD_SIZE", "1") != "1":
        raise LaunchError(
            "several processes do not know each other: set RANK, WORLD_SIZE and MASTER_ADDR (the "
            "machine of rank 0), or use torchrun or accelerate launch"
        )
    return "python", {}


def _ranks_of(starter: Name, variables: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the ranks that a starter gave this process, by torchrun's names."""
    ranks = {ours: env[theirs] for ours, theirs in zip(RANKS, variables, strict=True)}
    if starter == "srun":
        # Such as 8(x2), or 8(x2),4 if the machines differ.
        same = re.fullmatch(r"(\d+)(\(x\d+\))?", ranks["LOCAL_WORLD_SIZE"])
        ranks["LOCAL_WORLD_SIZE"] = same[1] if same else "0"
    ranks["MASTER_PORT"] = "29500"
    if ranks["LOCAL_WORLD_SIZE"] == ranks["WORLD_SIZE"]:
        ranks["MASTER_ADDR"] = "127.0.0.1"
    return ranks
