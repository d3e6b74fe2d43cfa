"""The launcher that started this process, with the arguments and the rank.

Under ``accelerate launch`` the YAML never reaches the script: only variables made from it do, after
typos were dropped. So the launcher's own command line is read from the parent process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from .rank_variables import Name

# Programs whose first argument is a command: ``accelerate launch`` is ``accelerate-launch``.
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


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The program that started this process, ``python`` for none, and the place on the machine.

    Args:
        arguments: the words that were typed after ``accelerate launch``. Empty for the others.
        local_world_size: processes on this machine. 0 if unknown.
    """

    name: Name
    arguments: tuple[str, ...] = ()
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 0


def detect() -> Launcher:
    """Read the launcher from environment and parents, and set torchrun's variables if unset."""
    name, arguments = _nearest()
    if name == "python":
        from .rank_variables import by_starter  # a plain run needs no other starters

        name, ranks = by_starter(os.environ)
        os.environ.update({**ranks, **os.environ})

    return Launcher(
        name=name,
        arguments=arguments,
        world_size=env_number("WORLD_SIZE") or 1,
        local_rank=env_number("LOCAL_RANK"),
        local_world_size=env_number("LOCAL_WORLD_SIZE") or env_number("LOCAL_SIZE"),
    )


def env_number(variable: str) -> int:
    """Return the number in an environment variable. 0 if the variable is not set."""
    return int(os.environ.get(variable) or 0)


# -- processes above this process ------------------------------------------------------------------


def _parents() -> Iterator[list[str]]:
    """Yield the command lines of the processes above this process, as far as they are shown."""
    with suppress(psutil.Error):
        for process in psutil.Process().parents():
            yield process.cmdline()


def launcher_line() -> list[str]:
    """Return the command line of the parent of this process if that is a launcher, else []."""
    line = next(_parents(), [])
    return line if _program(line)[0] in _PROGRAMS else []


def _nearest() -> tuple[Name, tuple[str, ...]]:
    """Return the launcher nearest to this process, and the arguments of ``accelerate launch``."""
    for line in _parents():
        program, arguments = _program(line)
        name = _PROGRAMS.get(program)
        if name:
            return name, tuple(arguments) if name == "accelerate" else ()
        if program and _is_python(line):
            # Somebody's own program started this process: the programs above it do not count.
            break
    return "python", ()


def _program(line: Sequence[str]) -> tuple[str, list[str]]:
    """Return the program and its arguments. ``-m a.b`` and ``/path/a/b.py`` are the same."""
    words = list(line)
    if _is_python(words):
        del words[0]
        while words and words[0].startswith("-"):
            option = words.pop(0)
            if option == "-c":
                return "", []
            if option in ("-W", "-X"):
                del words[:1]
    path = PurePath(*words[:1])
    program = path.name
    if path.suffix == ".py":
        program = ".".join(path.with_suffix("").parts[-3:])
    if program in _WITH_COMMANDS and words[1:2] == ["launch"]:
        return "accelerate-launch", words[2:]
    return program, words[1:]


def _is_python(line: Sequence[str]) -> bool:
    return PurePath(*line[:1]).name.startswith("python")
