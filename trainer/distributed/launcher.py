"""The launcher that started this process, its arguments, and the rank that it gave.

Under ``accelerate launch`` the YAML never reaches the script: only variables made from it do, after
typos were dropped. So the launcher's own command line is read from the parent process.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

import psutil

from ..errors import LaunchError

Name = Literal["python", "accelerate", "torchrun", "deepspeed", "srun", "mpirun", "environment"]

# Programs whose first argument says what they do.
_WITH_COMMANDS = ("accelerate", "accelerate.commands.accelerate_cli")
_PROGRAMS: dict[str, Name] = {
    **dict.fromkeys(("accelerate-launch", "accelerate.commands.launch"), "accelerate"),
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), "torchrun"),
    **dict.fromkeys(
        ("deepspeed", "ds", "deepspeed.launcher.launch", "deepspeed.launcher.runner"), "deepspeed"
    ),
}
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
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


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The program that started this process, and the rank that it gave.

    Args:
        name: ``python`` for none. ``environment`` for another program that sets the ranks.
        arguments: the words that were typed after ``accelerate launch``. Empty for the others.
        world_size: processes of the whole job. ``rank`` and ``local_rank`` are this process's.
        local_world_size: processes on this machine. 0 if unknown.
        num_machines: that share the processes. 0 if unknown.
    """

    name: Name
    arguments: tuple[str, ...] = ()
    world_size: int = 1
    rank: int = 0
    local_rank: int = 0
    local_world_size: int = 1
    num_machines: int = 1


def detect(
    environment: Mapping[str, str] | None = None, ancestors: Sequence[Sequence[str]] | None = None
) -> Launcher:
    """Read the launcher from the environment and the parents' command lines.

    Ranks that are given in another way than torchrun's are written to this process's environment as
    torchrun's, which Accelerate and DeepSpeed read.

    Args:
        environment: variables. None: those of this process.
        ancestors: command lines, the parent's first. None: those above this process.

    Raises:
        LaunchError: several processes were started, and their variables do not say how they
            find each other.
    """
    is_own = environment is None
    env = dict(os.environ if environment is None else environment)
    if ancestors is None:
        ancestors = [line for _, line in _parents()]
    name, arguments = _nearest(ancestors)
    if name == "python" or "RANK" not in env or "WORLD_SIZE" not in env:
        starter, ranks = _by_starter(env, is_own=is_own)
        env = {**ranks, **env}
        _check(env, starter, is_connected=is_own and _is_connected())
        if name == "python" and "RANK" in env and "WORLD_SIZE" in env:
            name = starter
            env.setdefault("LOCAL_RANK", "0")
        if is_own:
            os.environ.update({key: env[key] for key in (*ranks, *RANKS) if key in env})

    world_size = _number(env, "WORLD_SIZE") or 1
    local_world_size = _number(env, "LOCAL_WORLD_SIZE") or _number(env, "LOCAL_SIZE")
    if world_size == 1:
        local_world_size = 1
    num_machines = _number(env, "GROUP_WORLD_SIZE") or _number(env, "CROSS_SIZE")
    if not num_machines and local_world_size:
        num_machines = math.ceil(world_size / local_world_size)
    return Launcher(
        name=name,
        arguments=tuple(arguments),
        world_size=world_size,
        rank=_number(env, "RANK"),
        local_rank=_number(env, "LOCAL_RANK"),
        local_world_size=local_world_size,
        num_machines=num_machines,
    )


def rank_of_process() -> int:
    """Return the rank that torch or a launcher gave this process. 0 without either."""
    _, ranks = _by_starter(os.environ, is_own=True)
    rank = os.environ.get("RANK") or ranks.get("RANK", "0")
    return int(rank) if rank.isdecimal() else 0


# -- ranks from the environment -------------------------------------------------------------------


def _by_starter(env: Mapping[str, str], *, is_own: bool) -> tuple[Name, dict[str, str]]:
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


def _check(env: Mapping[str, str], starter: Name, *, is_connected: bool) -> None:
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
    if not (is_right and (knows_others or is_connected)):
        found = ", ".join(f"{name}={value!r}" for name, value in told.items())
        raise LaunchError(
            f"several processes (by: {starter}) do not know each other: {found}; set all of them, "
            "MASTER_ADDR to the machine of rank 0, or use torchrun or accelerate launch"
        )


def _number(env: Mapping[str, str], name: str) -> int:
    """Return the number of a variable. 0 if the variable is not set."""
    return int(env.get(name) or 0)


def _is_connected() -> bool:
    """Return whether the calling code connected the processes."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_available() and dist.is_initialized())


# -- processes above this process ------------------------------------------------------------------


def _parents() -> Iterator[tuple[psutil.Process, list[str]]]:
    """Yield each process above this process, the parent first, with its command line.

    It yields none if the system hides them.
    """
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().parents():
            yield process, process.cmdline()


def launcher_processes() -> list[psutil.Process]:
    """List the launchers above this process, the nearest first. [] if started by hand."""
    found = []
    for process, line in _parents():
        program, _ = _program(line)
        if program not in (*_PROGRAMS, *_WITH_COMMANDS):
            break
        found.append(process)
    return found


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process still runs. A process that ended and was not waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class LauncherWatch:
    """A look, once a second at most, at whether the launcher was killed."""

    def __init__(self) -> None:
        self._processes = launcher_processes()
        self._looked = time.monotonic()

    def is_gone(self) -> bool:
        """Return whether a launcher above this process has ended. False within a second."""
        now = time.monotonic()
        if now - self._looked < 1.0:
            return False
        self._looked = now
        return not all(is_alive(process) for process in self._processes)


def _nearest(lines: Sequence[Sequence[str]]) -> tuple[Name, Sequence[str]]:
    """Return the launcher nearest to this process, and the arguments of ``accelerate launch``."""
    for line in lines:
        program, arguments = _program(line)
        if program in _WITH_COMMANDS and arguments[:1] == ["launch"]:
            return "accelerate", arguments[1:]
        if program in _PROGRAMS:
            name = _PROGRAMS[program]
            return name, arguments if name == "accelerate" else ()
        if program and _is_python(line):
            # Somebody's own program started this process: the programs above it do not count.
            return "python", ()
    return "python", ()


def _program(line: Sequence[str]) -> tuple[str, list[str]]:
    """Return the program of a command line and its arguments. "" for ``python -c``.

    ``python -m package.module`` and ``python /path/to/package/module.py`` are the same program.
    """
    words = list(line)
    if _is_python(words):
        del words[0]
        while words and words[0].startswith("-"):
            option = words.pop(0)
            if option in ("-W", "-X"):
                del words[:1]
            elif option.endswith("m") and not option.startswith(("-W", "-X")):  # also -um
                break
            elif option in ("-c", "-"):
                return "", []
    if not words:
        return "", []
    path = PurePath(words[0])
    if path.suffix == ".py":
        return ".".join(path.with_suffix("").parts[-3:]), words[1:]
    return path.name, words[1:]


def _is_python(line: Sequence[str]) -> bool:
    return bool(line) and PurePath(line[0]).name.startswith("python")
