"""Check files together for ``trainer check``, whose options are in ``check_command.py``."""

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
from ..config.load import Loaded, load_task_part
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
from .check_build import build_problems
from .launch_files import kind_of, read_launch_file, request_rows
from .shadowed import other_distributions, shadow_notices

T = TypeVar("T")
_DEFAULT_PROCESSES = 2


def check_files(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Return 0 where all of it would run, 2 where something is wrong: every problem in a line of
    its own.
    """
    sys.path.insert(0, str(Path(args.script).resolve().parent))
    with contextlib.redirect_stdout(sys.stderr):  # what libraries print is not our answer
        check = _Check(args)
        check.add_problems(other_distributions())
        if Path(args.script).parent.resolve() != Path.cwd():  # which every command looks at
            check.add_problems(shadow_notices(Path(args.script).parent))
        check.read(words)
        check.combine()
    print("\n".join(check.answer))
    for line in check.problems:
        print(line, file=sys.stderr)
    count = len(check.problems)
    print(f"{count} problem{'s' if count > 1 else ''}" if count else "nothing is wrong", flush=True)
    return 2 if count else 0


class _Check:
    """The contents of all files, and every problem of them: one fault does not hide the next."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.gpus = visible_gpus()
        self.answer: list[str] = []
        self.problems: list[str] = []
        self.requests: list[tuple[str, Request]] = []
        self.configs: list[tuple[str, Loaded, Task | None]] = []

    def read(self, words: Sequence[str]) -> None:
        """Sort the words of the command line, and read the files among them."""
        typed = split_command_line(words)
        self.add_problems(map(str, typed.problems))
        settings = [f"--{key}={text}" for key, text in typed.texts.items()]
        named = [
            typed.files[key]
            for key in ("config", "accel_config", "deepspeed")
            if key in typed.files
        ]
        loaded: list[tuple[str, Loaded | None]] = []
        for path in [*map(os.path.expanduser, typed.words), *named]:
            file_type = self.catch(lambda path: kind_of(read_document(path)), path)
            if file_type == "training":
                loaded.append((path, self._load(["--config", path, *settings])))
            elif file_type is not None:
                request = self.catch(read_launch_file, path, self.args.processes)
                self.requests += [(path, request)] if request is not None else []
        if settings and not loaded:
            loaded.append((COMMAND_LINE, self._load(settings)))
        for path, config in loaded:
            if config is not None:
                task, whole = self.catch(load_task, config) or (None, config.config)
                self.configs.append((path, dataclasses.replace(config, config=whole), task))

    def _load(self, words: Sequence[str]) -> Loaded | None:
        """Read a training config; where something in it is wrong, its task's settings are looked at
        all the same.
        """
        loaded = self.catch(load_config, words)
        part = load_task_part(words) if loaded is None else None
        if part is not None:
            self.catch(load_task, part)
        return loaded

    def combine(self) -> None:
        """Describe each launch file, alone or under each training config."""
        for path, request in self.requests:
            self.answer.append(f"{path}: {request.strategy}{self._describe_world(request)}")
            if not self.configs:
                rehearsal = request.strategy != "single" and (request.use_cpu or not self.gpus)
                world = request.world_size.value if request.world_size else self.args.processes
                if world is not None:
                    self.catch(check_partitions, request, world)
                notices = [*request.notices, *(rehearsal_notices(request) if rehearsal else ())]
                self.answer.append(
                    table(request_rows(request, world, rehearsal=rehearsal), notices)
                )
        for path, loaded, task in self.configs:
            self.answer.append(f"{path}: task {loaded.config.task}")
            plans = []
            for launch_file, request in self.requests:
                plan = self.catch(self._plan, loaded, request, task)
                if plan is not None:
                    plans.append(plan)
                    self.answer += [
                        f"\n{path} under {launch_file}",
                        table(plan_rows(plan.as_dict()), plan.notices),
                    ]
            if self.args.build and task is not None:
                alone = (
                    []
                    if self.requests
                    else [
                        self.catch(
                            resolve,
                            loaded.config,
                            None,
                            Launcher(name="python"),
                            self.gpus,
                            loaded.origins,
                        )
                    ]
                )
                self.add_problems(
                    build_problems(
                        task, loaded, [plan for plan in [*plans, *alone] if plan is not None]
                    )
                )

    def _plan(self, loaded: Loaded, request: Request, task: Task | None) -> Plan:
        world = (
            request.world_size.value
            if request.world_size
            else self.args.processes or _DEFAULT_PROCESSES
        )
        local = -(-world // request.num_machines)
        launcher = Launcher(
            name="accelerate",
            world_size=world,
            local_world_size=local,
            num_machines=request.num_machines,
        )
        gpus = max(self.gpus, local) if self.gpus else 0
        built_by = None if task is None else own_optimizer(task)
        plan = resolve(
            loaded.config, request, launcher, gpus, loaded.origins, optimizer_built_by=built_by
        )
        notices = [*plan.notices]
        if gpus > self.gpus and plan.device != "cpu":
            notices.append(
                f"this machine has {self.gpus} of the {local} GPUs that each machine needs"
            )
        if plan.tensor_parallel_size > 1 and not self.args.build:
            divided = f"whether the layers of this model can be divided by tp_size {plan.tensor_parallel_size}"
            notices.append(f"{divided} is known once it is built: --build says it")
        return dataclasses.replace(plan, notices=tuple(notices))

    def _describe_world(self, request: Request) -> str:
        if request.world_size is None:
            assumed = self.args.processes or _DEFAULT_PROCESSES
            checked = f"; checked with {assumed}" if self.configs else ""
            return f"; the number of processes comes from the launcher{checked}"
        count = request.world_size.value
        machines = f" on {request.num_machines} machines" if request.num_machines > 1 else ""
        return f" on {count} process{'es' if count > 1 else ''}{machines}"

    def add_problems(self, lines: Iterable[str]) -> None:
        """Note problems that were not found before."""
        self.problems += [line for line in lines if line not in self.problems]

    def catch(self, work: Callable[..., T], *arguments: Any) -> T | None:
        """Return what ``work`` returns; None where it raises an error of ours, whose problems are
        noted.
        """
        try:
            return work(*arguments)
        except ConfigError as error:
            self.add_problems(map(str, error.problems))
        except TrainerError as error:
            self.add_problems([str(error)])
        return None
