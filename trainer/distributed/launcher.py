"""Which launcher started this process, what was typed to it, and which rank it gave.

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
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

import psutil

from ..errors import LaunchError

Name = Literal["python", "accelerate", "torchrun", "deepspeed", "srun", "mpirun", "environment"]

# Those whose first argument says what they do.
_WITH_COMMANDS = ("accelerate", "accelerate.commands.accelerate_cli")
_PROGRAMS: dict[str, Name] = {
    **dict.fromkeys(("accelerate-launch", "accelerate.commands.launch"), "accelerate"),
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), "torchrun"),
    **dict.fromkeys(
        ("deepspeed", "ds", "deepspeed.launcher.launch", "deepspeed.launcher.runner"), "deepspeed"
    ),
}
# What those that start one process a rank call RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE.
# mpirun comes first: it may start its daemons by srun, and its processes inherit what that sets.
# Slurm counts the tasks of a step only in what srun starts: salloc's shell and sbatch's script
# (with SLURM_NTASKS, and a SLURM_PROCID of 0) are one process.
_OPEN_MPI = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
_MPICH_AND_INTEL_MPI = ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS")
_SLURM = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE")
_STARTERS: tuple[tuple[Name, tuple[str, ...]], ...] = (
    ("mpirun", _OPEN_MPI),
    ("mpirun", _MPICH_AND_INTEL_MPI),
    ("srun", _SLURM),
)
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
# Variables that have the same value in all processes of one job, and another one in the next.
_JOB = {
    "srun": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "mpirun": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
}
# Variables of the job's size; the DeepSpeed launcher has names of its own.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
_MACHINES = ("GROUP_WORLD_SIZE", "CROSS_SIZE")


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The program that started this process, and the rank that it gave.

    Args:
        name: ``python`` for none; ``environment`` for another that sets RANK and WORLD_SIZE.
        arguments: what was typed after ``accelerate launch``; empty for the others.
        world_size: processes of the whole job; ``rank`` and ``local_rank`` are this one's.
        local_world_size: processes on this machine; 0 where it is unknown.
        num_machines: that share the processes; 0 where it is unknown.
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
    torchrun's, which is what Accelerate and DeepSpeed read.

    Args:
        environment: variables; None: those of this process.
        ancestors: command lines, the parent's first; None: those above this process.

    Raises:
        LaunchError: several processes were started, and nothing says how they find each other; or a
            variable that says so cannot be right.
    """
    env = os.environ if environment is None else environment
    _check_numbers(env)
    if ancestors is None:
        ancestors = [line for _, line in _parents()]
    name, arguments = _nearest(ancestors)

    has_ranks = "RANK" in env and "WORLD_SIZE" in env
    ranks = dict(env) if has_ranks else {}
    if name == "python" or not has_ranks:
        starter, ranks = _ranks_without_launcher(env, is_own=environment is None)
        if ranks and name == "python":
            name = starter
        if environment is None:
            os.environ.update(ranks)

    world_size = int(ranks.get("WORLD_SIZE", 1))
    local_world_size = _first(ranks, _LOCAL_SIZES)
    if not local_world_size and world_size == 1:
        local_world_size = 1
    num_machines = _first(ranks, _MACHINES)
    if not num_machines and local_world_size:
        num_machines = math.ceil(world_size / local_world_size)
    return Launcher(
        name=name,
        arguments=tuple(arguments),
        world_size=world_size,
        rank=int(ranks.get("RANK", 0)),
        local_rank=int(ranks.get("LOCAL_RANK", 0)),
        local_world_size=local_world_size,
        num_machines=num_machines,
    )


# -- ranks from the environment -------------------------------------------------------------------


def _check_numbers(env: Mapping[str, str]) -> None:
    """Raise ``LaunchError`` where a variable of torchrun's is no number, or a rank is too large."""
    names = (*RANKS, *_LOCAL_SIZES, *_MACHINES, "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    for name in names:
        value = env.get(name)
        if value is None or (value == "" and name not in RANKS):  # an empty one counts as not set
            continue
        if not re.fullmatch(r"[0-9]{1,9}", value):
            raise LaunchError(
                f"{name}={value!r} is set, which must be a whole number; unset it, or correct it"
            )

    for name, size_name in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        rank = env.get(name)
        size = env.get(size_name)
        if rank and size and int(rank) >= int(size):
            last = int(size) - 1
            raise LaunchError(
                f"{name}={rank} is set beside {size_name}={size}: ranks go from 0 to {last}"
            )


def _ranks_without_launcher(env: Mapping[str, str], *, is_own: bool) -> tuple[Name, dict[str, str]]:
    """Return who gave this process a rank, without a launcher of ours above it, and the ranks.

    Args:
        is_own: whether ``env`` is of this process, whose code may have connected it.

    Raises:
        LaunchError: as ``detect``.
    """
    given = dict(env) if "RANK" in env and "WORLD_SIZE" in env else {}
    starter: Name = "environment"
    found = _connected() if is_own else {}
    if not found:
        starter, found = _from_starter(env, refuse=not given)
    if not found and not given:
        _refuse_half_a_rank(env)
        return starter, {}

    ranks = {"LOCAL_RANK": "0", **found, **given}
    has_address = env.get("MASTER_ADDR") or "MASTER_ADDR" in ranks or _is_connected()
    if int(ranks["WORLD_SIZE"]) > 1 and not has_address:
        raise LaunchError(
            f"RANK and WORLD_SIZE={ranks['WORLD_SIZE']} are set, but not MASTER_ADDR, the machine "
            "of rank 0; set it, or unset them"
        )
    return starter, ranks


def _refuse_half_a_rank(env: Mapping[str, str]) -> None:
    """Raise ``LaunchError`` where only one of RANK and WORLD_SIZE is set, to several processes."""
    for name, other, alone in (("WORLD_SIZE", "RANK", "1"), ("RANK", "WORLD_SIZE", "0")):
        if env.get(name, alone) not in ("", alone):
            raise LaunchError(
                f"{name}={env[name]} is set, but not {other}: unset it to train in one process, or "
                "start several by torchrun or accelerate launch"
            )


def _is_connected() -> bool:
    """Return whether the calling code connected the processes."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_available() and dist.is_initialized())


def rank_of_process() -> int:
    """Return the rank that torch or a launcher gave this process; 0 where nobody did."""
    if _is_connected():
        return int(sys.modules["torch.distributed"].get_rank())
    if os.environ.get("RANK", "").isdecimal():
        return int(os.environ["RANK"])
    _, ranks = _from_starter(os.environ, refuse=False)
    return int(ranks.get("RANK", 0))


def _first(variables: Mapping[str, str], names: Sequence[str]) -> int:
    """Return the first number that is set; 0 for none."""
    for name in names:
        if variables.get(name):
            return int(variables[name])
    return 0


def _connected() -> dict[str, str]:
    """Return the ranks where the calling code connected this machine's processes.

    ``accelerate.debug_launcher`` does so.
    """
    dist: Any = sys.modules.get("torch.distributed")
    if not _is_connected() or "RANK" in os.environ:
        return {}
    rank = str(dist.get_rank())
    world_size = str(dist.get_world_size())
    return {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
    }


def _from_starter(env: Mapping[str, str], *, refuse: bool) -> tuple[Name, dict[str, str]]:
    """Return who started one process a rank, and the ranks by torchrun's names; {} for nobody.

    Args:
        refuse: whether the processes cannot know each other by other means.

    Raises:
        LaunchError: nothing says how they find each other.
    """
    started = [(name, names) for name, names in _STARTERS if env.get(names[2], "1") != "1"]
    complete = [pair for pair in started if all(variable in env for variable in pair[1])]
    if not complete and not (started and refuse):
        return "environment", {}

    name, names = complete[0] if complete else started[0]
    problem = (
        f"{name} starts {env[names[2]]} processes ({names[2]}={env[names[2]]}) that do not know "
        "each other; set"
    )
    if not complete:
        raise LaunchError(
            f"{problem} RANK, LOCAL_RANK, WORLD_SIZE and MASTER_ADDR, or start one torchrun per "
            "machine"
        )

    ranks = {ours: env[theirs] for ours, theirs in zip(RANKS, names, strict=True)}
    first_machine = ""
    if name == "srun":
        tasks = _tasks_of_machines(env[names[3]])
        ranks["LOCAL_WORLD_SIZE"] = tasks[int(env.get("SLURM_NODEID", 0))]
        ranks["GROUP_WORLD_SIZE"] = str(len(tasks))
        first_machine = _first_machine(env.get("SLURM_STEP_NODELIST", ""))

    address = env.get("MASTER_ADDR")
    if not address:
        is_one_machine = ranks["LOCAL_WORLD_SIZE"] == ranks["WORLD_SIZE"]
        address = "127.0.0.1" if is_one_machine else first_machine
    if not address:
        raise LaunchError(
            f"{problem} MASTER_ADDR to the machine of rank 0: mpirun -x MASTER_ADDR=HOST, -genv "
            "for MPICH"
        )
    ranks["MASTER_ADDR"] = address
    ranks["MASTER_PORT"] = env.get("MASTER_PORT") or _port_of_job(env, name)
    return name, ranks


def _tasks_of_machines(listed: str) -> list[str]:
    """Return the tasks of each machine from Slurm's list, such as ``8(x2),4``: 8, 8, 4."""
    tasks = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", listed):
        tasks += [count] * int(times or 1)
    return tasks


def _port_of_job(env: Mapping[str, str], starter: Name) -> str:
    """Return the port at which the ranks of a job meet; two jobs on one machine need two.

    Ports that the system gives away begin at 32768.
    """
    job = "".join(env.get(variable, "") for variable in _JOB[starter])
    return str(20000 + zlib.crc32(job.encode()) % 12000)


def _first_machine(listed: str) -> str:
    """Return the first machine of Slurm's list, such as ``gpu[03-07,12],cpu1``: gpu03."""
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])*", listed)
    if not found:
        return ""
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", found[0])


# -- processes above this one ---------------------------------------------------------------------


def _parents() -> Iterator[tuple[psutil.Process, list[str]]]:
    """Yield each process above this one, the parent first, with its command line.

    It yields none where the system hides them.
    """
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().parents():
            yield process, process.cmdline()


def launcher_processes() -> list[psutil.Process]:
    """List the launchers above this process, the nearest first; [] where it was started by hand."""
    launchers = {*_PROGRAMS, *_WITH_COMMANDS}
    found = []
    for process, line in _parents():
        program, _ = _program(line)
        if program not in launchers:
            break
        found.append(process)
    return found


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process still runs; one that ended and was not waited for does not."""
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
        """Return whether a launcher above this process has ended; False within a second."""
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
            # Somebody's own program started this one: what is above it is not our launcher.
            return "python", ()
    return "python", ()


def _program(line: Sequence[str]) -> tuple[str, list[str]]:
    """Return what a command line runs, and its arguments; "" for ``python -c``.

    That is a module, a script as a module, or a program: ``python -m package.module`` and ``python
    /path/to/package/module.py`` are the same launcher.
    """
    words = list(line)
    if _is_python(words):
        words = _after_python_options(words[1:])
    if not words:
        return "", []
    path = PurePath(words[0])
    if path.suffix == ".py":
        return ".".join(path.with_suffix("").parts[-3:]), words[1:]
    return path.name, words[1:]


def _after_python_options(words: list[str]) -> list[str]:
    """Return the words from the module or script on; [] for ``-c`` and for a script from stdin."""
    words = list(words)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in ("-W", "-X"):
            del words[:1]
        elif option.startswith(("-W", "-X")):
            continue
        elif option.endswith("m"):  # also -um
            break
        elif option.endswith(("c", "-")):
            return []
    return words


def _is_python(line: Sequence[str]) -> bool:
    return bool(line) and PurePath(line[0]).name.startswith("python")
