"""Run the command ``trainer``.

Each command is a module with ``run(argv) -> exit code``. A call imports only the module called.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from ..errors import TrainerError
from ..text import versions

COMMANDS = {
    "new": "a folder with a task that trains, a config, launch files and a test",
    "train": "train a config's task; under a launcher: accelerate launch ... -m trainer train",
    "evaluate": "measure a model under any strategy, and write predictions",
    "checkpoints": "list the checkpoints of a run, and verify them",
    "export": "make a model folder from a checkpoint",
    "show": "a batch of a language task, with marks around the tokens that are trained on",
    "check": "read launch files and training configs, and show the plan of each run",
    "parity": "train a few steps under each launch file: are loss, norm and weights the same?",
    "plan": "the memory of a GPU under each launch file, and which file to take",
    "rehearse": "the memory and exchanges of a job on many GPUs, on a machine without a GPU",
    "compare": "runs beside each other: curves, speed, memory",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 means done, 1 a failure, and 2 a mistake in the command line or in a file.
    """
    parser = argparse.ArgumentParser(
        prog="trainer",
        usage="%(prog)s COMMAND ... | --version; %(prog)s COMMAND --help tells more",
        description="\n".join(f"{name:12} {about}" for name, about in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="of this and other packages")
    parser.add_argument("--local_rank", help=argparse.SUPPRESS)  # from the deepspeed launcher
    parser.add_argument("command", choices=COMMANDS, nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    try:
        args = parser.parse_args(argv)
        code = 0
        if args.version:
            print("\n".join(map(" ".join, versions().items())))
        elif args.command is None:
            parser.print_help()
        else:
            module = importlib.import_module(f".{args.command}", __package__)
            code = int(module.run(args.words))
        sys.stdout.flush()  # raises BrokenPipeError if the reader has closed the pipe
        return code
    except TrainerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader (head, less) has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
