"""``trainer check FILE ...``: read launch files and training configs together, and show the plan of
each run.

    trainer check accel_configs/zero3.yaml train.yaml --max_steps 5 micro_batch_size=4

Nothing is started. Every training config is checked under every launch file.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated

from pydantic import Field

from ..config.arguments import sort_files
from ..config.naming import resolve_names
from ..distributed.started_by import Launcher
from ..errors import COMMAND_LINE, TrainerError
from ..launching.launched import read_launch_file
from ..launching.request import visible_gpus
from ..launching.resolve import resolve
from ..reporting.banner import plan_rows
from ..script import load_config, load_task
from ..task import own_optimizer
from ..text import table


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    processes: Annotated[int | None, "replaces the number in the launch files", Field(ge=1)] = None


def run(options: Options, settings: Sequence[str], words: Sequence[str]) -> int:
    """Print the plans to stdout, and each error to stderr.

    Return 0 if every training could run, else the exit code of the worst error.
    """
    configs, files = sort_files(words)
    trainings: list[Sequence[str]] = [[file.path, *settings] for file in configs] or [settings]
    launch_files: list[str | None] = [file.path for file in files] or [None]
    codes = {}  # by the text of the error, in the order of the files
    for training, launch_file in product(trainings, launch_files):
        try:
            with contextlib.redirect_stdout(sys.stderr):  # libraries print, too
                answer = _describe(training, launch_file, options.processes)
            print(answer)
        except TrainerError as error:
            codes[str(error)] = error.exit_code
    for line in codes:
        print(line, file=sys.stderr)
    return max(codes.values(), default=0)


def _describe(training: Sequence[str], launch_file: str | None, processes: int | None) -> str:
    """Return the table of a plan."""
    request, world = None, processes or 1
    if launch_file:
        request = read_launch_file(launch_file, processes)
        world = request.world_size.value if request.world_size else processes or 2
    loaded = load_config(training)
    task, config = load_task(loaded)
    plan = resolve(
        config,
        request,
        # The file may be for other machines: how the processes are spread over them is unknown.
        Launcher(name="accelerate", world_size=world),
        visible_gpus(),
        loaded.origins,
        optimizer_built_by=own_optimizer(task),
    )
    names = resolve_names(config, plan)
    rows = [*names.items(), *plan_rows(plan.as_dict())]
    title = f"{loaded.config_file or COMMAND_LINE} under {launch_file or f'{world} processes'}:"
    return "\n".join([title, table(rows, plan.notices)])
