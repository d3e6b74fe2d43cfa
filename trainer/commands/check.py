"""``trainer check FILES... [SETTINGS...]``: read launch files and training configs together, and
show the plan of each run.

    trainer check accel_configs/zero3.yaml train.yaml --max_steps 5 micro_batch_size=4

Nothing is started. Every training config is checked under every launch file. A launch file alone is
checked with the defaults of a training config.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import product

from ..config.arguments import FILES, launch_option, split_command_line
from ..config.documents import read_document
from ..config.naming import resolve_names
from ..distributed.launcher import Launcher
from ..errors import COMMAND_LINE, Origin, Sourced, TrainerError, usage_error
from ..launching.files.accelerate_file import read_accelerate_file
from ..launching.files.deepspeed_file import read_deepspeed_file
from ..launching.request import Request, visible_gpus
from ..launching.resolve import resolve
from ..reporting.banner import plan_rows
from ..script import load_config, load_task
from ..task import own_optimizer
from ..text import table
from .usage import command_parser, positive_number


def run(argv: Sequence[str]) -> int:
    """Print the plans to stdout, and each error to stderr.

    Returns:
        0 if every training could run, else the exit code of the training.

    Raises:
        ConfigError: a file cannot be read, or a key of the command line is unknown.
    """
    parser = command_parser(
        "check",
        __doc__,
        usage="%(prog)s FILE ... [--key value | key=value ...] [options]",
    )
    parser.add_argument(
        "--processes", type=positive_number, help="replaces the number in the launch files"
    )
    args, words = parser.parse_known_args(argv)
    if not words:
        parser.error("name the files to check (`accelerate env` describes this machine)")

    trainings, launch_files = _sort(words)
    codes = {}  # by the text of the error, in the order of the files
    for training, launch_file in product(trainings, launch_files):
        try:
            with contextlib.redirect_stdout(sys.stderr):  # libraries print, too
                answer = _describe(training, launch_file, args.processes)
            print(answer)
        except TrainerError as error:
            codes[str(error)] = error.exit_code
    for line in codes:
        print(line, file=sys.stderr)
    return max(codes.values(), default=0)


def _sort(words: Sequence[str]) -> tuple[list[list[str]], list[str | None]]:
    """Return the command line of a training for each config, and the launch files.

    Without a training, the list holds an empty command line. Without a launch file, None.
    """
    texts, paths = split_command_line(words)
    for key in get_close_matches("processes", texts, cutoff=0.8):
        raise usage_error(key, texts[key], "unknown key; did you mean 'processes'?")
    paths += [texts.pop(key) for key in FILES if key in texts]
    settings = [f"--{key}={text}" for key, text in texts.items()]
    trainings = []
    launch_files: list[str | None] = []
    for path in paths:
        data = read_document(path).data
        if launch_option(data) or (path.endswith(".json") and "task" not in data):
            launch_files.append(path)
        else:
            trainings.append(["--config", path, *settings])
    return trainings or [settings], launch_files or [None]


def _read_launch_file(path: str, processes: int | None) -> Request:
    if launch_option(read_document(path).data) != "accel_config":
        return read_deepspeed_file(path)

    flags = {}
    if processes:
        flags["num_processes"] = Sourced(processes, Origin(COMMAND_LINE, key="--processes"))
    return read_accelerate_file(path, overrides=flags)


def _describe(training: Sequence[str], launch_file: str | None, processes: int | None) -> str:
    """Return the table of a plan.

    Args:
        training: command line of a training. Empty for the defaults of a training config.
        launch_file: path. None without a launch file.
        processes: the number on the command line.

    Raises:
        TrainerError: the training could not run.
    """
    request, world = None, processes or 1
    if launch_file is not None:
        request = _read_launch_file(launch_file, processes)
        world = request.world_size.value if request.world_size else processes or 2
    # The file may be for other machines: how the processes are spread over them is unknown.
    launcher = Launcher(name="accelerate", world_size=world)

    title, names = "defaults", {}
    loaded = load_config(training or ["task=any:Task", "max_steps=1"])
    config, built_by = loaded.config, None
    if training:
        task, config = load_task(loaded)
        built_by = own_optimizer(task)
    plan = resolve(
        config, request, launcher, visible_gpus(), loaded.origins, optimizer_built_by=built_by
    )
    if training:
        title = loaded.config_file or COMMAND_LINE
        names = vars(resolve_names(config, plan, loaded.origins))
    rows = [*names.items(), *plan_rows(plan.as_dict())]
    title = f"{title} under {launch_file or f'{world} processes'}:"
    return "\n".join([title, table(rows, plan.notices)])
