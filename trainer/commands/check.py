"""``trainer check FILES...``: read launch files and training configs together, and say what will run.

Nothing is started and nothing is built. Every launch file is held against every training config; all problems
of all files are told in one go.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..banner import plan_rows, table
from ..config import Loaded, load_config
from ..documents import read_document
from ..errors import ConfigError, TrainerError
from ..launching.files import Request, kind_of, read_launch_file
from ..launching.launcher import Launcher
from ..launching.plan import Machine, Plan, resolve
from ..script import load_task
from ..task import own_optimizer

T = TypeVar("T")


def run(argv: Sequence[str]) -> int:
    """0: all of it would run. 2: something is wrong, every problem in a line of its own."""
    parser = argparse.ArgumentParser(prog="trainer check", description=__doc__.split("\n\n")[0])
    parser.add_argument("files", nargs="+", help="accelerate YAMLs, DeepSpeed JSONs, training configs")
    parser.add_argument(
        "--processes", type=int, default=2, help="how many a DeepSpeed JSON is launched with; default 2"
    )
    parser.add_argument("--script", default="examples/train.py", help="the script whose folder holds the task")
    args = parser.parse_args(argv)
    sys.path.insert(0, str(Path(args.script).resolve().parent))

    said = _Problems()
    requests: list[tuple[str, Request]] = []
    configs: list[tuple[str, Loaded]] = []
    for path in args.files:
        document = said.catch(read_document, path)
        kind = None if document is None else kind_of(document)
        if kind == "training":
            loaded = said.catch(load_config, ["--config", path])
            configs += [(path, loaded)] if loaded is not None else []
        elif kind is not None:
            request = said.catch(read_launch_file, path)
            requests += [(path, request)] if request is not None else []
    owners = {path: said.catch(_task_of, loaded) for path, loaded in configs}

    for path, request in requests:
        print(f"{path}: {request.strategy}{_world_of(request)}")
        for notice in request.notices if not configs else ():
            print(f"  note: {notice}")
    for config_path, loaded in configs:
        print(f"{config_path}: task {loaded.config.task}")
        for path, request in requests:
            world = request.world_size.value if request.world_size else args.processes
            plan = said.catch(_plan, loaded, request, world, owners[config_path])
            if plan is not None:
                print(f"\n{config_path} under {path}")
                print(table(plan_rows(plan.as_dict()), plan.notices))
    for line in said.lines:
        print(line, file=sys.stderr)
    count = len(said.lines)
    print(f"{count} problem{'s' if count > 1 else ''}" if count else "nothing is wrong", flush=True)
    return 2 if said.lines else 0


class _Problems:
    """Collects the lines of our own errors, so that one fault does not hide the next."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def catch(self, work: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return work(*arguments)
        except ConfigError as error:
            found = list(map(str, error.problems))
        except TrainerError as error:
            found = [str(error)]
        self.lines += [line for line in found if line not in self.lines]
        return None


def _task_of(loaded: Loaded) -> str | None:
    """Check the task's own settings; the answer is who builds the optimizer, if the task does."""
    task, _ = load_task(loaded)
    return own_optimizer(task)


def _world_of(request: Request) -> str:
    if request.world_size is None:
        return "; the launcher says on how many processes"
    machines = f" on {request.num_machines} machines" if request.num_machines > 1 else ""
    return f" on {request.world_size.value} processes{machines}"


def _plan(loaded: Loaded, request: Request, world: int, built_by: str | None) -> Plan:
    # Where it is launched there are as many GPUs as processes; without GPUs the same files are a rehearsal.
    local = -(-world // request.num_machines)
    machine = Machine(gpus=0 if request.use_cpu else local)
    launcher = Launcher(name="accelerate", world_size=world, rank=0, local_rank=0, local_world_size=local)
    return resolve(loaded.config, request, launcher, machine, loaded.where, optimizer_built_by=built_by)
