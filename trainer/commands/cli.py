"""Run the command ``trainer``.

Each subcommand is a module with ``run(argv) -> exit code``, imported only when it is called.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from ..errors import TrainerError
from ..text import did_you_mean, versions

# By the name that the user types: the module, and its line of ``trainer --help``.
COMMANDS = {
    "new": ("new", "a folder with a task that trains, its config, launch files and a test"),
    "train": (
        "train",
        "train what a config names; under a launcher: accelerate launch ... -m trainer train",
    ),
    "evaluate": (
        "evaluate",
        "measure a run's model, or another one, under any strategy; write its predictions",
    ),
    "checkpoints": ("checkpoints", "list the checkpoints of a run, and check them"),
    "export": ("export", "make a model folder from a checkpoint"),
    "show": (
        "show",
        "a batch of a language task as the model sees it, and which tokens are trained on",
    ),
    "check": (
        "check",
        "read launch files and training configs: what will run, or all that is wrong",
    ),
    "parity": (
        "parity",
        "train a few steps under each launch file: are loss, norm and weights the same?",
    ),
    "plan": (
        "plan",
        "the memory of a GPU under each launch file, and which file to take",
    ),
    "compare": (
        "compare.command",
        "runs beside each other: curves, speed, memory, one sentence that recommends",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit code.

    0 means yes or done, 1 means no, 2 means a mistake in the command line or in a file.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    # The deepspeed launcher puts --local_rank first; the environment says the same.
    words = [word for word in words if not word.startswith("--local_rank=")]

    try:
        code = _run(words)
        # Flushed here: if the reader of a pipe has closed it, that shows up while it is caught.
        sys.stdout.flush()
        return code
    except TrainerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader (head, less) has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(words: list[str]) -> int:
    name = words[0] if words else "--help"
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name == "--version":
        print(_versions())
        return 0
    if name not in COMMANDS:
        print(f"trainer: no command {name!r}; {did_you_mean(name, COMMANDS)}", file=sys.stderr)
        return 2

    module_name, _ = COMMANDS[name]
    module = importlib.import_module(f".{module_name}", __package__)
    return int(module.run(words[1:]))


def _versions() -> str:
    found = versions(installed=True)
    return "\n".join(f"{package} {version}" for package, version in found.items())


def _help() -> str:
    usage = "usage: trainer COMMAND ... | --version; trainer COMMAND --help tells more"
    rows = [f"  {name:12} {about}" for name, (_, about) in COMMANDS.items()]
    return "\n".join([usage, "", *rows])
