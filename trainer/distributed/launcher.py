"""Which launcher started this process, and what was typed to it.

Under ``accelerate launch`` the YAML never reaches the script: only variables made from it do, after
typos were dropped. So the launcher's own command line is read from the parent process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

import psutil

from ..errors import LaunchError

Name = Literal["python", "accelerate", "torchrun", "deepspeed", "environment"]

# Those whose first argument says what they do.
_WITH_COMMANDS = ("accelerate", "accelerate.commands.accelerate_cli")
_PROGRAMS: dict[str, Name] = {
    "accelerate-launch": "accelerate",
    "accelerate.commands.launch": "accelerate",
    "torchrun": "torchrun",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed": "deepspeed",
    "ds": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
}
# Who starts several processes by itself, by the variable that says how many.
_STARTERS = {"SLURM_STEP_NUM_TASKS": "srun", "OMPI_COMM_WORLD_SIZE": "mpirun", "PMI_SIZE": "mpirun"}


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """Who started this process.

    Args:
        name: ``python`` for none; ``environment`` for another that sets RANK and WORLD_SIZE (srun, mpirun).
        arguments: what was typed after ``accelerate launch``; empty for the others.
        world_size: processes of the whole job; ``rank`` and ``local_rank`` are this one's.
        local_world_size: processes on this machine.
    """

    name: Name
    arguments: tuple[str, ...] = ()
    world_size: int = 1
    rank: int = 0
    local_rank: int = 0
    local_world_size: int = 1


def detect(environment: Mapping[str, str] | None = None, ancestors: Sequence[Sequence[str]] | None = None) -> Launcher:
    """Read the launcher from the environment and the parents' command lines."""
    env = os.environ if environment is None else environment
    lines = [line for _, line in _parents()] if ancestors is None else ancestors
    name, arguments = _nearest(lines)
    if name == "python":
        if environment is None and (connected := _connected()) is not None:
            return connected
        if "RANK" not in env or "WORLD_SIZE" not in env:
            _refuse_unconnected(env)
            return Launcher(name="python")
        name = "environment"
    world = int(env.get("WORLD_SIZE", 1))
    return Launcher(
        name=name,
        arguments=tuple(arguments),
        world_size=world,
        rank=int(env.get("RANK", 0)),
        local_rank=int(env.get("LOCAL_RANK", 0)),
        local_world_size=int(env.get("LOCAL_WORLD_SIZE", world)),
    )


def _connected() -> Launcher | None:
    """Return the launcher where the calling code connected this machine's processes (``accelerate.debug_launcher``)."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized() or "RANK" in os.environ:
        return None
    rank, world = dist.get_rank(), dist.get_world_size()
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(value) for name, value in names.items()})  # Accelerate and DeepSpeed read them
    return Launcher(name="environment", world_size=world, rank=rank, local_rank=rank, local_world_size=world)


def _refuse_unconnected(env: Mapping[str, str]) -> None:
    """Raise LaunchError where somebody starts the same program several times without telling each its rank."""
    for name, starter in _STARTERS.items():
        count = env.get(name, "1")
        if count != "1":
            raise LaunchError(
                f"{starter} starts {count} processes ({name}={count}) that do not know each other, so each would train "
                "alone; start one torchrun or accelerate launch per machine, or set RANK, WORLD_SIZE and MASTER_ADDR"
            )


def _parents() -> Iterator[tuple[psutil.Process, list[str]]]:
    """Yield each process from the parent upwards, with its command line; none where the system hides them."""
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
            return "python", ()  # somebody's own program started us: what stands above it is not our launcher
    return "python", ()


def _program(line: Sequence[str]) -> tuple[str, list[str]]:
    """Return what a command line runs (a module, a script as a module, a program) and its arguments; "" for ``-c``."""
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
    return ".".join(path.with_suffix("").parts[-3:]) if path.suffix == ".py" else path.name, words[1:]


def _is_python(line: Sequence[str]) -> bool:
    return bool(line) and PurePath(line[0]).name.startswith("python")
