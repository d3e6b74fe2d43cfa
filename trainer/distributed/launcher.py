"""Which launcher started this process, what was typed to it, and which rank it gave.

Under ``accelerate launch`` the YAML never reaches the script: only variables made from it do, after
typos were dropped. So the launcher's own command line is read from the parent process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
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
# mpirun comes first: it may start its daemons by srun, and its processes inherit what that says.
# Slurm counts the tasks of a step only in what srun starts: salloc's shell and sbatch's script
# (with SLURM_NTASKS, and a SLURM_PROCID of 0) are one process.
_STARTERS: tuple[tuple[Name, tuple[str, ...]], ...] = (
    (
        "mpirun",
        tuple(f"OMPI_COMM_WORLD_{word}" for word in ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")),
    ),
    (
        "mpirun",
        ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ),  # MPICH and Intel MPI
    (
        "srun",
        ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
    ),
)
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
# Variables that have the same value in all processes of one job, and another one in the next.
_JOB = {
    "srun": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "mpirun": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
}
# Those of the job's size; the DeepSpeed launcher has names of its own.
_LOCAL_SIZES, _MACHINES = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"), ("GROUP_WORLD_SIZE", "CROSS_SIZE")


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """Who started this process.

    Args:
        name: ``python`` for none; ``environment`` for another that sets RANK and WORLD_SIZE.
        arguments: what was typed after ``accelerate launch``; empty for the others.
        world_size: processes of the whole job; ``rank`` and ``local_rank`` are this one's.
        local_world_size: processes on this machine; 0 where nobody says.
        num_machines: that share the processes; 0 where nobody says.
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

    Ranks that are said in another way than torchrun's are written to this process's environment as
    torchrun's, which is what Accelerate and DeepSpeed read.

    Raises:
        LaunchError: several processes were started, and nothing says how they find each other; or a
            variable that says so cannot be right.
    """
    env = os.environ if environment is None else environment
    _check_numbers(env)
    name, arguments = _nearest([line for _, line in _parents()] if ancestors is None else ancestors)
    ranks = own = dict(env) if "RANK" in env and "WORLD_SIZE" in env else {}
    if name == "python" or not own:
        starter: Name = "environment"
        found = _connected() if environment is None else {}
        if not found:
            starter, found = _from_starter(env, refuse=not own)
        ranks = {"LOCAL_RANK": "0", **found, **own} if found or own else {}
        name = starter if ranks and name == "python" else name
        if not ranks:
            _refuse_half_a_rank(env)
        elif int(ranks["WORLD_SIZE"]) > 1 and not (
            env.get("MASTER_ADDR") or "MASTER_ADDR" in ranks or _is_connected()
        ):
            size = f"WORLD_SIZE={ranks['WORLD_SIZE']}"
            raise LaunchError(
                f"RANK and {size} are set, but not MASTER_ADDR, the machine of rank 0; set it, or unset them"
            )
        if environment is None:
            os.environ.update(ranks)
    world = int(ranks.get("WORLD_SIZE", 1))
    local = _first(ranks, _LOCAL_SIZES) or int(world == 1)
    return Launcher(
        name=name,
        arguments=tuple(arguments),
        world_size=world,
        rank=int(ranks.get("RANK", 0)),
        local_rank=int(ranks.get("LOCAL_RANK", 0)),
        local_world_size=local,
        num_machines=_first(ranks, _MACHINES) or (-(-world // local) if local else 0),
    )


def _check_numbers(env: Mapping[str, str]) -> None:
    """Raise ``LaunchError`` where a variable of torchrun's is no number, or a rank is not one of
    the job's.
    """
    numbers = (*RANKS, *_LOCAL_SIZES, *_MACHINES, "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    for name in numbers:
        value = env.get(name)
        if value is None or (value == "" and name not in RANKS):  # an empty one counts as not set
            continue
        if not re.fullmatch(r"[0-9]{1,9}", value):
            raise LaunchError(
                f"{name}={value!r} is set, which must be a whole number; unset it, or correct it"
            )

    for name, of in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        rank, size = env.get(name), env.get(of)
        if rank and size and int(rank) >= int(size):
            last = int(size) - 1
            raise LaunchError(f"{name}={rank} is set beside {of}={size}: ranks go from 0 to {last}")


def _refuse_half_a_rank(env: Mapping[str, str]) -> None:
    """Raise ``LaunchError`` where one of RANK and WORLD_SIZE says that there are several processes,
    alone.
    """
    for name, other, alone in (("WORLD_SIZE", "RANK", "1"), ("RANK", "WORLD_SIZE", "0")):
        if env.get(name, alone) not in ("", alone):
            raise LaunchError(
                f"{name}={env[name]} is set, but not {other}: unset it to train in one process, or start several by "
                "torchrun or accelerate launch"
            )


def _is_connected() -> bool:
    """Tell whether the calling code connected the processes."""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and bool(dist.is_available() and dist.is_initialized())


def _first(variables: Mapping[str, str], names: Sequence[str]) -> int:
    return next((int(variables[name]) for name in names if variables.get(name)), 0)


def _connected() -> dict[str, str]:
    """Return the ranks where the calling code connected this machine's processes
    (``accelerate.debug_launcher``).
    """
    dist: Any = sys.modules.get("torch.distributed")
    if not _is_connected() or "RANK" in os.environ:
        return {}
    rank, world = str(dist.get_rank()), str(dist.get_world_size())
    return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}


def _from_starter(env: Mapping[str, str], *, refuse: bool) -> tuple[Name, dict[str, str]]:
    """Return who started one process a rank, and the ranks in torchrun's words; none where nobody
    did.

    Args:
        refuse: whether the processes cannot know each other by other means.

    Raises:
        LaunchError: nothing says how they find each other.
    """
    started = [(name, names) for name, names in _STARTERS if env.get(names[2], "1") != "1"]
    complete = [
        (name, names) for name, names in started if all(variable in env for variable in names)
    ]
    if not complete and not (started and refuse):
        return "environment", {}
    name, names = (complete or started)[0]
    wrong = f"{name} starts {env[names[2]]} processes ({names[2]}={env[names[2]]}) that do not know each other; set"
    if not complete:
        raise LaunchError(
            f"{wrong} RANK, LOCAL_RANK, WORLD_SIZE and MASTER_ADDR, or start one torchrun per machine"
        )
    found = {variable: env[theirs] for variable, theirs in zip(RANKS, names, strict=True)}
    first = ""
    if name == "srun":  # 8(x2),4: tasks of each machine
        tasks = [
            n
            for n, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", env[names[3]])
            for _ in range(int(times or 1))
        ]
        found |= {
            "LOCAL_WORLD_SIZE": tasks[int(env.get("SLURM_NODEID", 0))],
            "GROUP_WORLD_SIZE": str(len(tasks)),
        }
        first = _first_machine(env.get("SLURM_STEP_NODELIST", ""))
    address = env.get("MASTER_ADDR") or (
        "127.0.0.1" if found["LOCAL_WORLD_SIZE"] == found["WORLD_SIZE"] else first
    )
    if not address:
        raise LaunchError(
            f"{wrong} MASTER_ADDR to the machine of rank 0: mpirun -x MASTER_ADDR=HOST, -genv for MPICH"
        )
    # Two jobs on one machine need two ports: those that the system gives away begin at 32768.
    port = (
        20000
        + zlib.crc32("".join(env.get(variable, "") for variable in _JOB[name]).encode()) % 12000
    )
    return name, {
        **found,
        "MASTER_ADDR": address,
        "MASTER_PORT": env.get("MASTER_PORT") or str(port),
    }


def _first_machine(listed: str) -> str:
    """Return the first machine of a list in Slurm's words, such as ``gpu[03-07,12],cpu1``."""
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])*", listed)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", found[0]) if found else ""


def _parents() -> Iterator[tuple[psutil.Process, list[str]]]:
    """Yield each process from the parent upwards, with its command line; none where the system
    hides them.
    """
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().parents():
            yield process, process.cmdline()


def launcher_processes() -> list[psutil.Process]:
    """List the launchers above this process, the nearest first; empty where it was started by hand."""
    launchers = {*_PROGRAMS, *_WITH_COMMANDS}
    above = itertools.takewhile(lambda parent: _program(parent[1])[0] in launchers, _parents())
    return [process for process, _ in above]


def is_alive(process: psutil.Process) -> bool:
    """Tell whether a process still runs; one that ended and was not waited for does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _nearest(lines: Sequence[Sequence[str]]) -> tuple[Name, Sequence[str]]:
    for line in lines:
        program, rest = _program(line)
        if program in _WITH_COMMANDS and rest[:1] == ["launch"]:
            return "accelerate", rest[1:]
        if program in _PROGRAMS:
            name = _PROGRAMS[program]
            return name, rest if name == "accelerate" else ()
        if program and _is_python(line):
            return (
                "python",
                (),
            )  # somebody's own program started us: what stands above it is not our launcher
    return "python", ()


def _program(line: Sequence[str]) -> tuple[str, list[str]]:
    """Return what a command line runs (a module, a script as a module, a program) and its
    arguments; "" for ``-c``.
    """
    words = list(line)
    if _is_python(words):
        words.pop(0)
        while words and words[0].startswith("-"):
            option = words.pop(0)
            if option in ("-W", "-X"):
                del words[:1]
            elif option.startswith(("-W", "-X")):
                continue
            elif option.endswith("m"):  # also -um
                break
            elif option.endswith(("c", "-")):
                return "", []
    if not words:
        return "", []
    path = PurePath(words[0])
    # `python -m package.module` and `python /path/to/package/module.py` are the same launcher.
    return ".".join(path.with_suffix("").parts[-3:]) if path.suffix == ".py" else path.name, words[
        1:
    ]


def _is_python(line: Sequence[str]) -> bool:
    return bool(line) and PurePath(line[0]).name.startswith("python")
