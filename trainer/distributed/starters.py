"""Ranks that come from srun, mpirun, or code that has connected the processes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from ..errors import LaunchError
from .names import RANKS, Name

# The same variables of programs that start one process a rank. mpirun comes first: it may start its
# daemons by srun, and its processes inherit the variables of that. Slurm counts the tasks of a step
# only in processes that srun starts: the shell of salloc and the script of sbatch are one process.
_STARTERS: tuple[tuple[Name, tuple[str, ...]], ...] = (
    (
        "mpirun",
        (
            *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
            *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ),
    ),
    ("mpirun", ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS")),
    (
        "srun",
        ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
    ),
)


def rank_of_process() -> int:
    """Return the rank that torch or a launcher gave this process. 0 without either."""
    _, ranks = by_starter(os.environ, is_own=True)
    rank = os.environ.get("RANK") or ranks.get("RANK", "0")
    return int(rank) if rank.isdecimal() else 0


def by_starter(env: Mapping[str, str], *, is_own: bool) -> tuple[Name, dict[str, str]]:
    """Return who started one process a rank, and the ranks by torchrun's names.

    Args:
        is_own: whether ``env`` is of this process, whose code may have connected it, as
            ``accelerate.debug_launcher`` does.
    """
    if is_own and _is_connected():
        dist: Any = sys.modules["torch.distributed"]
        values = (dist.get_rank(), dist.get_rank(), dist.get_world_size(), dist.get_world_size())
        return "environment", dict(zip(RANKS, map(str, values), strict=True))

    for name, variables in _STARTERS:
        if env.get(variables[2], "1") == "1" or variables[1] not in env:
            continue
        ranks = {ours: env[theirs] for ours, theirs in zip(RANKS, variables, strict=True)}
        if name == "srun":
            # Such as 8(x2), or 8(x2),4 if the machines differ.
            same = re.fullmatch(r"(\d+)(\(x\d+\))?", ranks["LOCAL_WORLD_SIZE"])
            ranks["LOCAL_WORLD_SIZE"] = same[1] if same else "0"
            ranks["GROUP_WORLD_SIZE"] = env["SLURM_STEP_NUM_NODES"]
        ranks["MASTER_PORT"] = "29500"
        if ranks["LOCAL_WORLD_SIZE"] == ranks["WORLD_SIZE"]:
            ranks["MASTER_ADDR"] = "127.0.0.1"
        return name, ranks
    return "environment", {}


def check(env: Mapping[str, str], starter: Name, *, is_own: bool) -> None:
    """Raise LaunchError if the variables of several processes are incomplete, or are no ranks."""
    told = {name: env.get(name, "") for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    rank = told["RANK"] or "0"
    world_size = told["WORLD_SIZE"] or "1"
    are_numbers = rank.isdecimal() and world_size.isdecimal()
    is_started = any(env.get(variables[2], "1") != "1" for _, variables in _STARTERS)
    if rank == "0" and world_size == "1" and (told["RANK"] or not is_started):
        return

    knows_others = bool(told["RANK"] and told["WORLD_SIZE"] and told["MASTER_ADDR"])
    is_right = are_numbers and int(rank) < int(world_size)
    if not (is_right and (knows_others or (is_own and _is_connected()))):
        found = ", ".join(f"{name}={value!r}" for name, value in told.items())
        raise LaunchError(
            f"several processes (by: {starter}) do not know each other: {found}; set all of them, "
            "MASTER_ADDR to the machine of rank 0, or use torchrun or accelerate launch"
        )


def _is_connected() -> bool:
    """Return whether the calling code connected the processes."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_available() and dist.is_initialized())
