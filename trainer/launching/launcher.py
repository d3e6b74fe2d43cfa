"""Which launcher started this process, and what was typed to it.

Under ``accelerate launch`` the YAML never reaches the script: only variables made from it do, after
typos were dropped. So the launcher's own command line is read from the parent process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

Name = Literal["python", "accelerate", "torchrun", "deepspeed", "environment"]


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
    lines = parent_command_lines() if ancestors is None else ancestors
    name, arguments = _nearest(lines)
    if name == "python" and "RANK" in env and "WORLD_SIZE" in env:
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


def parent_command_lines() -> list[list[str]]:
    """Command lines from the parent upwards; empty where the system hides them."""
    import psutil

    lines = []
    try:
        for process in psutil.Process().parents():
            lines.append(process.cmdline())
    except psutil.Error:
        pass
    return lines


def _nearest(lines: Sequence[Sequence[str]]) -> tuple[Name, Sequence[str]]:
    for line in lines:
        words = list(line)
        # `python -m module`, `python /path/to/script` and the script itself are the same launcher.
        for index, word in enumerate(words[:4]):
            name, rest = PurePath(word).name, words[index + 1 :]
            if name in ("accelerate", "accelerate.commands.accelerate_cli", "accelerate_cli.py") and rest:
                if rest[0] == "launch":
                    return "accelerate", rest[1:]
            elif name in ("accelerate-launch", "accelerate.commands.launch"):
                return "accelerate", rest
            elif name in ("torchrun", "torch.distributed.run", "torch.distributed.launch"):
                return "torchrun", ()
            elif name in ("deepspeed", "deepspeed.launcher.launch", "deepspeed.launcher.runner", "ds"):
                return "deepspeed", ()
        if _is_python_script(words):
            return "python", ()  # somebody's own program started us: what stands above it is not our launcher
    return "python", ()


def _is_python_script(words: Sequence[str]) -> bool:
    return len(words) > 1 and PurePath(words[0]).name.startswith("python") and "-c" not in words[:2]
