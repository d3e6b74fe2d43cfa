"""Run the command ``trainer``: a subcommand is a module with ``run(argv) -> exit code``, imported
when it is called.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import TrainerError
from ..text import did_you_mean, versions
from .shadowed import shadow_notices

COMMANDS = {
    "new": ("new", "a folder with a task that trains, its config, launch files and a test"),
    "train": (
        "train",
        "train what a config names; under a launcher: accelerate launch ... -m trainer train",
    ),
    "checkpoints": ("checkpoints", "list the checkpoints of a run, and check them"),
    "export": ("export", "make a model folder from a checkpoint"),
    "import": ("import_checkpoint", "make a model folder from another program's checkpoint"),
    "show": (
        "show",
        "a batch of a language task as the model sees it: documents, and what of them is learnt",
    ),
    "generate": (
        "generate",
        "text from an exported language model, or from an adapter on its model",
    ),
    "merge": ("merge", "make a model folder from an adapter and its model"),
    "check": (
        "check_command",
        "read launch files and training configs: what will run, or all that is wrong",
    ),
    "parity": (
        "parity",
        "train a few steps under each launch file: are loss, norm and weights the same?",
    ),
    "plan": (
        "planner.command",
        "what fits on which GPUs under which strategy: memory, bytes sent, a file",
    ),
    "compare": (
        "compare.command",
        "runs beside each other: curves, speed, memory, one sentence that recommends",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code: 0 for yes, 1 for no, 2 for a mistake in the
    command line or a file.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    # The deepspeed launcher puts --local_rank first; the environment says the same.
    name, *rest = [word for word in words if not word.startswith("--local_rank=")] or ["--help"]
    for line in shadow_notices(Path()):
        print(f"note: {line}", file=sys.stderr)
    try:
        code = _run(name, rest)
        sys.stdout.flush()  # here, where a reader that has gone can be answered
        return code
    except TrainerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(name: str, rest: list[str]) -> int:
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(
            "\n".join(
                f"{package} {version}" for package, version in versions(installed=True).items()
            )
        )
        return 0
    if name not in COMMANDS:
        print(f"trainer: no command {name!r}; {did_you_mean(name, COMMANDS)}", file=sys.stderr)
        return 2
    return int(importlib.import_module(f".{COMMANDS[name][0]}", __package__).run(rest))


def _help() -> str:
    rows = [f"  {name:12} {about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join(
        ["usage: trainer COMMAND ... | --version; trainer COMMAND --help tells more", "", *rows]
    )
