"""Real jobs through the real launchers, as a user starts them."""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
STRATEGIES = ("ddp", "fsdp", "zero1", "zero2", "zero3")
# Tests rehearse on the CPU, whatever machine they run on. The deepspeed launcher replaces the first
# of these for its processes, so that they see the GPUs again; the second stays.
HIDE_GPUS = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
# The socket of the process that is forked for each rank, if another process has started it.
STARTER = "RANK_STARTER"
SHOW_GPUS = {name: os.environ.get(name) for name in HIDE_GPUS}  # as it was before, for tests/gpu


def some_quick(*names: str) -> list[Any]:
    """Return all strategies to be tested, those that are not named with the slow tests."""
    return slow_but(names, STRATEGIES)


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Return cases to be tested, of one argument or of a tuple, the others with the slow tests."""
    chosen = [*quick]
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else [case]),
            marks=() if case in chosen else pytest.mark.slow,
        )
        for case in cases
    ]


def wrapper_of(strategy: str) -> str:
    """Return how the name of the class begins that a strategy makes of a model."""
    names = {"single": "", "ddp": "DistributedDataParallel", "fsdp": "FSDP"}
    return names.get(strategy, "DeepSpeedEngine")


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a finished job left behind."""

    code: int
    out: str
    err: str
    output_dir: Path

    @property
    def plan(self) -> dict[str, Any]:
        return dict(json_in(self.output_dir / "plan.json"))

    @property
    def rows(self) -> list[dict[str, Any]]:
        return json_lines(self.output_dir / "metrics.jsonl")

    @property
    def losses(self) -> list[float]:
        return self.column("loss")

    def column(self, name: str) -> list[Any]:
        """Return a value of all rows that have it."""
        return [row[name] for row in self.rows if name in row]

    @property
    def evaluation(self) -> dict[str, float]:
        return dict(json_in(self.output_dir / "summary.json")["evaluation"])

    def ok(self) -> Job:
        assert self.code == 0, (
            f"exit code {self.code}\n{self.out[-3000:]}\n{self.err[:6000]}\n...\n{self.err[-6000:]}"
        )
        return self


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment without what a launcher would set, with one thread a process.

    conftest.py has hidden the GPUs in it, and the tests marked gpu show them again.
    """
    dropped = ("ACCELERATE_", "FSDP_", "TORCHELASTIC_", "PARALLELISM_CONFIG_")
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped) and k not in names}
    fixed = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**kept, **fixed, "PYTHONFAULTHANDLER": "1", **(extra or {})}  # a crash tells where


def installed(*packages: str) -> bool:
    """Return whether all of these can be imported."""
    return all(importlib.util.find_spec(package) for package in packages)


def free_port() -> int:
    """Return a port that nobody listens on, for a launcher that is started soon.

    It is none of those that the system gives to whoever asks for any (from 32,768 on): the jobs
    beside this one connect all the time, and one of them would have it before the launcher.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def command(
    launcher: str, how: str, world: int = 2, script: str = "examples/train.py"
) -> list[str]:
    """The command that starts ``script`` under ``how`` (a strategy's committed file, or a path)
    with a launcher.
    """
    yaml = how if "/" in how else f"accel_configs/{how}.yaml"
    named = ["--deepspeed", how] if how.endswith(".json") else ["--accel_config", yaml]
    if launcher == "ranks":  # without a launcher, and without its seconds
        return ["ranks", str(world), script, *named]
    port = str(free_port())
    if launcher == "accelerate":
        words = [
            str(BIN / "accelerate"),
            "launch",
            "--config_file",
            yaml,
            "--main_process_port",
            port,
        ]
        return [*words, *([] if world in (0, 2) else ["--num_processes", str(world)]), script]
    if launcher == "torchrun":
        words = [
            str(BIN / "torchrun"),
            "--nproc_per_node",
            str(world),
            "--master_port",
            port,
            script,
        ]
        return [*words, *named]
    if launcher == "deepspeed":
        json_file = how if "/" in how else f"ds_configs/{how}.json"
        return [*deepspeed_launcher(world), script, "--deepspeed", json_file]
    assert launcher == "python"
    return [sys.executable, script]


def options(settings: Mapping[str, object], section: str = "") -> list[str]:
    """Return the words that set keys of a training, or of a section such as ``task_settings.``."""
    return [f"--{section}{key}={value}" for key, value in settings.items()]


def deepspeed_launcher(world: int = 2) -> list[str]:
    """Return the deepspeed launcher's command, without the script."""
    starter = [str(BIN / "deepspeed")]
    if not (BIN / "deepspeed").exists():  # its package was carried here without its command
        starter = [sys.executable, "-m", "deepspeed.launcher.runner"]
    return [*starter, "--num_gpus", str(world), "--master_port", str(free_port())]


def launch_file(path: Path, how: str, world: int = 2, mixed_precision: str | None = None) -> Path:
    """Write a committed YAML, for another number of processes or in another precision, to ``path``."""
    text = (ROOT / f"accel_configs/{how}.yaml").read_text()
    assert "mixed_precision:" not in text
    text, count = re.subn(r"num_processes: \d", f"num_processes: {world}", text)
    assert count == 1
    path.write_text(text + (f"mixed_precision: '{mixed_precision}'\n" if mixed_precision else ""))
    return path


def layouts(files: Path) -> dict[tuple[str, int], list[str]]:
    """Return the command of one process, and of each strategy on two and three, by strategy and
    number of processes.

    Args:
        files: the folder that gets a launch file for each.
    """
    worlds = [("single", 1), *((name, world) for name in STRATEGIES for world in (2, 3))]
    paths = {
        (name, world): launch_file(files / f"{name}{world}.yaml", name, world)
        for name, world in worlds
    }
    return {
        layout: command("ranks", str(path), layout[1] if layout[1] > 1 else 0)
        for layout, path in paths.items()
    }


def run(
    words: Sequence[str],
    output_dir: Path,
    *,
    timeout: float = 300,
    environment: Mapping[str, str] | None = None,
) -> Job:
    """Run a command from the repository's root, with ``output_dir`` as its own."""
    full = [*words, "--output_dir", str(output_dir)]
    if words[0] == "ranks":
        done = ranks(full[2:], int(words[1]), timeout=timeout, environment=environment)
    else:
        done = completed(full, environment=environment, timeout=timeout)
    return Job(code=done.returncode, out=done.stdout, err=done.stderr, output_dir=output_dir)


def completed(
    words: Sequence[str | Path],
    *,
    folder: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a clean environment with these variables added."""
    return subprocess.run(
        words,
        cwd=folder,
        env=clean_environment(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def worked(words: Sequence[object], world: int = 2, *, timeout: float = 300) -> str:
    """Run a script as ``ranks`` does, which must end well, and return what it printed."""
    done = ranks(words, world, timeout=timeout)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def trained(
    how: str,
    folder: Path,
    configs: Mapping[str, Mapping[str, Any]],
    *words: str,
    world: int = 2,
    files: Mapping[str, str | Path] | None = None,
    ends: bool = False,
    script: str = "tests/workers/trainings.py",
) -> dict[str, Job]:
    """Train configs in one job, each into a folder of its name, and return what each has left.

    Each has run under the strategy on as many processes, or its ``err`` has the error.

    Args:
        how: a strategy, whose committed launch file is taken, or its variant.
        words: of the command line, behind each config.
        world: how many processes, if it is not ``single``.
        files: other launch files, by name of the config.
        ends: whether an error on one rank ends the job.
        script: a worker that trains the configs, and goes on.
    """
    world = 1 if how == "single" else world
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in configs.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dict(config)))
    file = launch_file(folder / "accel.yaml", how, world)
    of_config = {name: str((files or {}).get(name, file)) for name in configs}
    told = {"folder": str(folder), "files": of_config, "words": words, "ends": ends}
    done = ranks([script, json.dumps(told)], 0 if how == "single" else world, timeout=900)
    assert bool(done.returncode) == ends, done.stdout[-3000:] + done.stderr[-6000:]
    strategy = how.partition("_")[0].replace("hsdp", "fsdp")
    jobs = {}
    for name in configs:
        error = folder / f"{name}.error"
        err = error.read_text() if error.exists() else done.stderr if ends else ""
        job = Job(code=len(err), out=done.stdout, err=err, output_dir=folder / name)
        jobs[name] = job
        if not err:
            assert (job.plan["strategy"], job.plan["world_size"]) == (strategy, world), name
            assert job.plan["model_class"].startswith(wrapper_of(strategy)), name
    return jobs


def json_in(path: Path) -> Any:
    """Read a file of JSON."""
    return json.loads(path.read_text())


def json_lines(path: Path) -> list[Any]:
    """Read a file with JSON on each line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def ranks(
    words: Sequence[object],
    world: int = 2,
    *,
    timeout: float = 300,
    environment: Mapping[str, str] | None = None,
    work_dir: Path = ROOT,
    starter: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a script with its arguments as ``world`` connected processes; 0 for a single one without
    a rank. ``starter`` is the socket of another process to fork.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder) / name for name in ("out", "err"))
        job = {
            "words": [str(word) for word in words],
            "world": world,
            "timeout": timeout,
            "environment": clean_environment(environment),
            "folder": str(work_dir),
            "out": str(out),
            "err": str(err),
        }
        forks, _ = connection(threading.get_ident(), starter)
        forks.write(json.dumps(job) + "\n")
        forks.flush()
        code = json.loads(forks.readline())
        return subprocess.CompletedProcess(
            words, code, *(p.read_text() if p.exists() else "" for p in (out, err))
        )


def command_script(folder: Path) -> Path:
    """Write a script for ``ranks`` that is the command ``trainer`` in a folder."""
    path = folder / "trainer_command.py"
    code = "import os, sys\nfrom trainer.commands import cli\n"
    path.write_text(f"{code}os.chdir(sys.path[0])\nsys.exit(cli.main())\n")
    return path


@cache
def connection(thread: int, starter: str) -> tuple[TextIO, int]:
    """Connect a thread to the process that is forked for each rank.

    Returns:
        Where jobs are written and exit codes are read, and the id of the ranks' parent.
    """
    path = starter or os.environ.get(STARTER) or start_ranks()[0]
    while not Path(path).exists():  # packages are imported
        time.sleep(0.1)
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(path)
        file = connected.makefile("rw")  # keeps the connection
    atexit.register(file.close)
    return file, int(file.readline())


STARTED: set[int] = set()  # processes of ``start_ranks``


@cache
def start_ranks(*kind: str) -> tuple[str, int]:
    """Start the process that is forked for each rank, which ends with this process.

    ``fake`` as the kind is the process of rehearsals.

    Returns:
        The path of its socket, which is there when packages are imported, and its id.
    """
    folder = tempfile.TemporaryDirectory()
    path = str(Path(folder.name) / "ranks")
    words = [sys.executable, str(ROOT / "tests/workers/rank_starter.py"), path, *kind]
    shown = {"CUDA_VISIBLE_DEVICES": "0", "DS_ACCELERATOR": "cuda", "PYTHONPATH": str(ROOT)}
    environment = clean_environment(shown if kind else {})
    starter = subprocess.Popen(words, cwd=ROOT, env=environment, stdin=subprocess.PIPE)
    STARTED.add(starter.pid)

    def end() -> None:
        starter.communicate()
        folder.cleanup()

    atexit.register(end)
    return path, starter.pid
