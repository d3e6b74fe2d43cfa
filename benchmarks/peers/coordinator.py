"""Starts the contenders of a table, hands out the turns, and writes down what came out."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import torch
from torch import Tensor

from trainer.data.order import epoch_order
from trainer.reporting.machine import machine
from trainer.text import versions

from .judge import apart, control_problem, idle_problem, ratio, weight_problem
from .tables import ROOT, Contender, Table
from .work import SAMPLES, Work, build_model

START_SECONDS, WARM_UP = 600.0, 10


class Failed(Exception):
    """A contender has ended, or the machine cannot hold all of them."""


@dataclass
class Running:
    """The processes of a contender, and what they answered.

    Attributes:
        seconds, cpu: of each turn: seconds of the slowest rank, and the CPU seconds of all ranks.
        idle: CPU seconds of all ranks while they waited, from the first turn on.
    """

    name: str
    log: Path
    processes: list[subprocess.Popen[bytes]]
    streams: list[Any] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    idle: float = 0.0

    def send(self, steps: int) -> None:
        for stream in self.streams:
            print(steps, file=stream, flush=True)

    def turn(self, steps: int) -> None:
        """Have it train for some steps, and wait for the answers of its ranks."""
        self.send(steps)
        lines = [stream.readline() for stream in self.streams]
        if not all(lines):
            raise Failed(self.why())
        answers = [json.loads(line) for line in lines]
        if self.seconds:  # before the first turn others were still starting
            self.idle += sum(answer["idle"] for answer in answers)
        self.seconds.append(max(answer["seconds"] for answer in answers))
        self.cpu.append(sum(answer["cpu"] for answer in answers))

    def finish(self) -> None:
        if any(process.wait(START_SECONDS) for process in self.processes):
            raise Failed(self.why())

    def why(self) -> str:
        end = "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])
        codes = ", ".join(str(process.poll()) for process in self.processes)
        return f"{end}\n{self.name} failed (exit codes: {codes}); above is the end of its log"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(contender: Contender, name: str, work: Work) -> Running:
    """Start the ranks, connected by torchrun's variables; torchrun itself would look after them ten
    times a second.
    """
    log = Path(work.folder) / f"{name}.log"
    command = [
        contender.python(),
        "-m",
        "benchmarks.peers.contenders",
        work.folder,
        name,
        contender.place,
    ]
    shared = {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "DS_ACCELERATOR": "cpu",
        "MASTER_ADDR": "127.0.0.1",
    }
    shared |= {
        "MASTER_PORT": str(free_port()),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    # glibc's heap gives memory back to the system in some processes and not in others: a step of
    # the same contender had 600 to 9,500 page faults, and took up to 8 % longer.
    shared |= dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 33))
    processes = []
    for rank in range(work.world):
        ranks = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": work.world,
            "LOCAL_WORLD_SIZE": work.world,
        }
        env = {
            **os.environ,
            **shared,
            **({key: str(value) for key, value in ranks.items()} if work.world > 1 else {}),
        }
        with open(log, "ab") as file:
            processes.append(
                subprocess.Popen(command, cwd=ROOT, env=env, stdout=file, stderr=subprocess.STDOUT)
            )
    return Running(name, log, processes)


def gather(listener: socket.socket, running: Mapping[str, Running]) -> None:
    """Wait until every rank has warmed up and stands before its first turn."""
    listener.settimeout(1.0)
    end = time.monotonic() + START_SECONDS
    while late := [one for one in running.values() if len(one.streams) < len(one.processes)]:
        for one in late:
            if any(process.poll() is not None for process in one.processes):
                raise Failed(one.why())
        if time.monotonic() > end:
            raise Failed(
                f"{', '.join(one.name for one in late)}: no turn could begin within {START_SECONDS:.0f} s"
            )
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.setblocking(True)
        stream = connection.makefile("rw")
        running[json.loads(stream.readline())["name"]].streams.append(stream)
    if psutil.virtual_memory().available < 2**30:
        raise Failed(
            "less than 1 GiB of memory is left beside all contenders: name fewer of them (--contenders)"
        )


def measure(table: Table, work: Work) -> dict[str, Running]:
    """Train with all contenders, the reference twice, in turns of a few steps; the order in each
    round is random.
    """
    contenders = {one.name: one for one in table.contenders}
    contenders[f"{table.contenders[0].name} again"] = table.contenders[0]
    running: dict[str, Running] = {}
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(Path(work.folder) / "socket"))
            listener.listen(128)
            for name, contender in contenders.items():
                running[name] = start(contender, name, work)
            gather(listener, running)
        draw = random.Random(0)
        for _ in range(work.rounds):
            for one in draw.sample(list(running.values()), len(running)):
                one.turn(work.block)
        for one in running.values():
            one.send(2)  # more than are left
        for one in running.values():
            one.finish()
    finally:
        for one in running.values():
            for process in one.processes:
                process.kill()
                process.wait()
    return running


def prepare(table: Table, folder: str, block: int, rounds: int) -> Work:
    """Write settings, first weights and the order of the samples."""
    work = Work(
        model=table.model,
        strategy=table.strategy,
        world=table.world,
        batch=table.batch,
        warm_up=WARM_UP,
        block=block,
        rounds=rounds,
        folder=folder,
    )
    torch.manual_seed(0)
    if table.model == "llama":
        from . import llama

        model = llama.write(Path(folder))
    else:
        model = build_model(table.model)
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    count = work.steps * table.world * table.batch
    epochs = [
        torch.from_numpy(epoch_order(SAMPLES, 0, epoch)) for epoch in range(-(-count // SAMPLES))
    ]
    work.write(weights, torch.cat(epochs)[:count])
    return work


def origin(command: str) -> dict[str, Any]:
    """Return what was run, when and where, and the load before it."""
    return {
        "command": command,
        "date": str(date.today()),
        "load_before": round(os.getloadavg()[0], 2),
        "machine": machine(torch.device("cpu"), lambda one: [one]),
        "versions": versions(),
    }


def run(name: str, table: Table, block: int, rounds: int, command: str) -> dict[str, Any]:
    """Measure a table and judge it; ``problems`` says why nothing in it is to be believed, where
    that is so.
    """
    about = origin(command)
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        work = prepare(table, folder, block, rounds)
        begin = time.monotonic()
        running = measure(table, work)
        weights: dict[str, dict[str, Tensor]] = {
            one: torch.load(Path(folder) / f"{one}.pt") for one in running
        }
        first = work.start["weights"]
    reference = table.contenders[0].name
    base = running[reference]
    tokens = table.tokens * table.world * table.batch * block
    rows, problems = [], []
    for one in running.values():
        middle, low, high = ratio(one.seconds, base.seconds)
        distances = apart(weights[one.name], weights[reference], first)
        rows.append(
            {
                "name": one.name,
                "ratio": round(middle, 4),
                "interval": [round(low, 4), round(high, 4)],
                "ms": round(1e3 * median(one.seconds) / block, 4),
                "cpu_ratio": round(ratio(one.cpu, base.cpu)[0], 4),
                "idle_cores": round(
                    one.idle / sum(sum(other.seconds) for other in running.values()), 5
                ),
                **({"tokens_per_second": round(tokens / median(one.seconds))} if tokens else {}),
                "apart": float(f"{max(distances.values()):.1e}"),
            }
        )
        problems += [
            weight_problem(one.name, distances),
            idle_problem(one.name, rows[-1]["idle_cores"]),
        ]
    problems.append(control_problem(reference, rows[-1]["ratio"]))
    return {
        "table": name,
        "title": table.title,
        "problems": [problem for problem in problems if problem],
        "contenders": rows,
        "steps": {"warm_up": WARM_UP, "block": block, "rounds": rounds},
        "seconds": round(time.monotonic() - begin),
        **about,
        "versions": about["versions"]
        | {key: value for one in table.contenders for key, value in one.pins()},
    }
