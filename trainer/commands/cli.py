"""Run the command ``trainer``.

Each command is a module with ``Options`` and ``run(options, settings, words) -> exit code``, of the
words that ``read_words`` reads. A call imports only the module called.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from ..errors import TrainerError, usage_error
from ..text import columns, did_you_mean, versions
from .usage import read_words

COMMANDS = {
    "new": "a folder with a task that trains, a config, launch files and a test",
    "train": "train a config's task; under a launcher: accelerate launch ... -m trainer train",
    "evaluate": "measure a model under any strategy, and write predictions",
    "checkpoints": "list the checkpoints of a run, and verify them",
    "export": "make a model folder from a checkpoint",
    "show": "a batch of a language task, with marks around the tokens that are trained on",
    "check": "read launch files and training configs, and show the plan of each run",
    "parity": "train a few steps under each launch file: are loss, norm and weights the same?",
    "replay": "compute steps of a run again, and name the first bit that differs",
    "plan": "the memory of a GPU under each launch file, and which file to take",
    "rehearse": "the memory and exchanges of a job on many GPUs, on a machine without a GPU",
    "compare": "runs beside each other: curves, speed, memory",
}
# Commands with ``run(argv)``, which ends the process: of several ranks the first tells a mistake.
_LAUNCHED = ("train", "evaluate", "replay")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 means done, 1 a failure, and 2 a mistake in the command line or in a file.
    """
    words = sys.argv[1:] if argv is None else argv
    # The deepspeed launcher adds --local_rank=N in front.
    words = [word for word in words if not word.startswith("--local_rank=")]
    command, *rest = words or ["--help"]
    try:
        code = 0
        if command == "--version":
            print("\n".join(map(" ".join, versions().items())))
        elif command in ("--help", "-h"):
            print("usage: trainer COMMAND ... | --version; trainer COMMAND --help tells more\n")
            print(columns([*COMMANDS.items()]))
        elif command in COMMANDS:
            module = importlib.import_module(f".{command}", __package__)
            arguments: Sequence[Any] = [rest]
            if command not in _LAUNCHED:
                arguments = read_words(module.__doc__, module.Options, rest)
            code = module.run(*arguments)
        else:
            raise usage_error("", command, f"unknown command; {did_you_mean(command, COMMANDS)}")
        sys.stdout.flush()  # raises BrokenPipeError if the reader has closed the pipe
        return code
    except TrainerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader (head, less) has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # such as a file that cannot be written
        print(error, file=sys.stderr)
        return 2
