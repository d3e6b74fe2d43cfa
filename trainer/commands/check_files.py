"""Check launch files and training configs together, for ``trainer check FILES...``."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..config.arguments import split_command_line
from ..config.documents import read_document
from ..config.load import Loaded
from ..config.naming import Names, resolve_names
from ..distributed.launcher import Launcher
from ..errors import COMMAND_LINE, ConfigError, TrainerError
from ..launching.cpu_rehearsal import rehearsal_notices
from ..launching.request import Request, visible_gpus
from ..launching.resolve import check_partitions, resolve
from ..plan import Plan
from ..reporting.banner import plan_rows
from ..script import load_config, load_task
from ..task import Task, own_optimizer
from ..text import table
from .launch_files import kind_of, read_launch_file, request_rows

T = TypeVar("T")
_DEFAULT_PROCESSES = 2


def check_files(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Print what would run to stdout, and each problem as a line to stderr.

    Args:
        args: the options of ``trainer check``.
        words: the rest of its command line: files and settings.

    Returns:
        0 if all of it would run, 1 if something is wrong.
    """
    script_folder = Path(args.script).parent
    sys.path.insert(0, str(script_folder.resolve()))

    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is no part of the answer
        check = _Check(args)
        check.read(words)
        check.describe_launch_files()
        for name, loaded, task in check.configs:
            check.describe_config(name, loaded, task)

    print("\n".join(check.answer))
    for line in check.problems:
        print(line, file=sys.stderr)
    print(_summary(len(check.problems)), flush=True)
    return 1 if check.problems else 0


def _summary(problems: int) -> str:
    if not problems:
        return "nothing is wrong"
    return "1 problem" if problems == 1 else f"{problems} problems"


class _Check:
    """The contents of all files, what would run, and every problem: one does not hide the next.

    Attributes:
        answer: the lines that describe what would run.
        problems: a line each.
        requests: launch files that could be read, with their paths.
        configs: training configs that could be read, with their paths (or ``command line``) and
            their tasks, None for a task that could not be made.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.gpus = visible_gpus()
        self.answer: list[str] = []
        self.problems: list[str] = []
        self.requests: list[tuple[str, Request]] = []
        self.configs: list[tuple[str, Loaded, Task | None]] = []

    def read(self, words: Sequence[str]) -> None:
        """Sort the words of the command line into files and settings, and read the files."""
        typed = split_command_line(words)
        settings = [f"--{key}={text}" for key, text in typed.texts.items()]
        paths = [os.path.expanduser(word) for word in typed.words]
        for key in ("config", "accel_config", "deepspeed"):
            if key in typed.files:
                paths.append(typed.files[key])

        configs: list[tuple[str, Loaded | None]] = []
        for path in paths:
            kind = self.catch(_kind_of_file, path)
            if kind == "training":
                configs.append((path, self._load(["--config", path, *settings])))
            elif kind is not None:
                request = self.catch(read_launch_file, path, self.args.processes)
                if request is not None:
                    self.requests.append((path, request))
        if settings and not configs:
            configs.append((COMMAND_LINE, self._load(settings)))

        for name, loaded in configs:
            if loaded is not None:
                self._add_config(name, loaded)

    def _load(self, words: Sequence[str]) -> Loaded | None:
        """Read a training config."""
        return self.catch(load_config, words)

    def _add_config(self, name: str, loaded: Loaded) -> None:
        """Make the task of a config, which may change defaults of the config."""
        made = self.catch(load_task, loaded)
        if made is None:
            self.configs.append((name, loaded, None))
            return

        task, config = made
        self.configs.append((name, dataclasses.replace(loaded, config=config), task))

    def describe_launch_files(self) -> None:
        """Describe each launch file; in detail only where there is no config to show it with."""
        for path, request in self.requests:
            self.answer.append(f"{path}: {request.strategy}{self._describe_world(request)}")
            if self.configs:
                continue

            world = request.world_size.value if request.world_size else self.args.processes
            if world is not None:
                self.catch(check_partitions, request, world)
            rehearsal = request.strategy != "single" and (request.use_cpu or not self.gpus)
            notices = list(request.notices)
            if rehearsal:
                notices += rehearsal_notices(request)
            self.answer.append(table(request_rows(request, world, rehearsal=rehearsal), notices))

    def describe_config(self, name: str, loaded: Loaded, task: Task | None) -> None:
        """Describe a config under each launch file."""
        self.answer.append(f"{name}: task {loaded.config.task}")
        if not self.requests and task is not None:
            names = self.catch(resolve_names, loaded.config, None, loaded.origins)
            if names is not None:
                self.answer.append(table(_name_rows(names), []))
        for path, request in self.requests:
            plan = self.catch(self._plan, loaded, request, task)
            if plan is not None:
                names = resolve_names(loaded.config, plan, loaded.origins)
                rows = [*_name_rows(names), *plan_rows(plan.as_dict())]
                self.answer.append(f"\n{name} under {path}")
                self.answer.append(table(rows, plan.notices))

        if not self.requests:
            self._check_optimizer(loaded, task)

    def _plan(self, loaded: Loaded, request: Request, task: Task | None) -> Plan:
        """Make the plan of a config under a launch file, as the launched processes would."""
        if request.world_size is not None:
            world = request.world_size.value
        else:
            world = self.args.processes or _DEFAULT_PROCESSES
        local_world = -(-world // request.num_machines)  # rounded up
        launcher = Launcher(
            name="accelerate",
            world_size=world,
            local_world_size=local_world,
            num_machines=request.num_machines,
        )
        # The file may be for a machine with more GPUs than this one, but not without any.
        gpus = max(self.gpus, local_world) if self.gpus else 0
        plan = resolve(
            loaded.config,
            request,
            launcher,
            gpus,
            loaded.origins,
            optimizer_built_by=_optimizer_built_by(task),
        )

        notices = list(plan.notices)
        if gpus > self.gpus and plan.device != "cpu":
            notices.append(
                f"this machine has {self.gpus} of the {local_world} GPUs that each machine needs"
            )
        return dataclasses.replace(plan, notices=tuple(notices))

    def _plan_alone(self, loaded: Loaded, task: Task | None) -> Plan:
        """Make the plan of a config in one process, without a launch file."""
        return resolve(
            loaded.config,
            None,
            Launcher(name="python"),
            self.gpus,
            loaded.origins,
            optimizer_built_by=_optimizer_built_by(task),
        )

    def _check_optimizer(self, loaded: Loaded, task: Task | None) -> None:
        """Check the optimizer that a config names, where there is no launch file to plan with.

        Other problems of the plan for one process are none here: the config may well be for
        several.
        """
        try:
            self._plan_alone(loaded, task)
        except ConfigError as error:
            for problem in error.problems:
                if problem.origin.key.startswith("optimizer"):
                    self.add_problems([str(problem)])
        except TrainerError:
            pass

    def _describe_world(self, request: Request) -> str:
        if request.world_size is None:
            assumed = self.args.processes or _DEFAULT_PROCESSES
            checked = f"; checked with {assumed}" if self.configs else ""
            return f"; the number of processes comes from the launcher{checked}"

        count = request.world_size.value
        noun = "processes" if count > 1 else "process"
        machines = f" on {request.num_machines} machines" if request.num_machines > 1 else ""
        return f" on {count} {noun}{machines}"

    def add_problems(self, lines: Iterable[str]) -> None:
        """Add the problems that were not found before."""
        for line in lines:
            if line not in self.problems:
                self.problems.append(line)

    def catch(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """Return what ``work`` returns; where it raises, add its problems and return None."""
        try:
            return work(*arguments)
        except ConfigError as error:
            self.add_problems(map(str, error.problems))
        except TrainerError as error:
            self.add_problems([str(error)])

        return None


def _name_rows(names: Names) -> list[tuple[str, str]]:
    return [("run", names.run_name), ("output", names.output_dir)]


def _kind_of_file(path: str) -> str:
    return kind_of(read_document(path))


def _optimizer_built_by(task: Task | None) -> str | None:
    """Return the method by which a task builds an optimizer of its own, if it does."""
    return None if task is None else own_optimizer(task)
