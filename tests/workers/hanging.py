"""A task of large layers, whose ranks are stopped, wait for ever, or take their time by right."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import math
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer import Data, Task


@dataclass(frozen=True, kw_only=True)
class Hanging(Task):
    """Trains on sums, until a rank takes its time, is stopped, or waits for ever.

    Args:
        width: of the hidden layers; from 400 on they have more elements than what ZeRO-3 keeps
            whole.
        does: a key of ``DOES``; "" for nothing.
        at: where: ``data`` (``build_data``), ``model`` (``build_model``), ``item`` (the sample of
            an index that rank has in its first step), ``step``, ``state`` (``state_dict``) or
            ``extras`` (``save_extras``).
        rank: which rank does it; -1 for all.
        after: at which call there.
        seconds: for which what takes its time does so.
        step_seconds: for which each step sleeps.
        stamp: a file that is written before it is done.
    """

    width: int = 16
    does: str = field(default="", compare=False)
    at: str = field(default="step", compare=False)
    rank: int = field(default=1, compare=False)
    after: int = field(default=3, compare=False)
    seconds: float = field(default=25.0, compare=False)
    step_seconds: float = field(default=0.0, compare=False)
    stamp: str = field(default="", compare=False)

    def build_data(self) -> Data:
        self._pass("data")
        return Data(train=Rows(4096, lambda: self._pass("item")), evaluation=Rows(64, lambda: None))

    def build_model(self) -> nn.Module:
        self._pass("model")
        hidden = nn.Linear(self.width, self.width)
        return nn.Sequential(
            nn.Linear(8, self.width), nn.Tanh(), hidden, nn.Tanh(), nn.Linear(self.width, 1)
        )

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        time.sleep(self.step_seconds)
        self._pass("step")
        return nn.functional.mse_loss(model(batch["row"]), batch["sum"])

    def state_dict(self) -> dict[str, Any]:
        self._pass("state")
        return {}

    def save_extras(self, directory: Path) -> None:
        self._pass("extras")

    def _pass(self, where: str) -> None:
        is_here = self.rank in (-1, int(os.environ.get("RANK", "0")))
        if not (self.does and self.at == where and is_here):
            return
        global calls
        calls += 1
        if calls == self.after:
            if self.stamp:
                Path(self.stamp).write_text("")
            DOES[self.does](self.seconds)


class Rows:
    """Rows of eight numbers, and their sum."""

    def __init__(self, size: int, before: Callable[[], None]) -> None:
        generator = torch.Generator().manual_seed(1)
        self.values = torch.randn(size, 8, generator=generator)
        self.before = before

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.before()
        row = self.values[index]
        return {"row": row, "sum": row.sum(dim=0, keepdim=True)}


calls = 0


def stop(seconds: float) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_in_an_answer(seconds: float) -> None:
    threading.Timer(1.0, stop, (0.0,)).start()
    ask(60.0)


def wait_for_ever(seconds: float) -> None:
    threading.Event().wait()


def wait_for_others(fault: Callable[[float], None]) -> Callable[[float], None]:
    """Let rank 0 wait by code of its own, which no frame shows, and the others have a fault."""

    def work(seconds: float) -> None:
        if dist.get_rank() > 0:
            fault(seconds)
        begun = dist.all_reduce(torch.ones(1), async_op=True)
        assert begun is not None
        begun.wait()

    return work


def spin_for_others(fault: Callable[[float], None]) -> Callable[[float], None]:
    """Let rank 0 wait as for its GPU, and the others have a fault.

    Collectives of GPUs return at once. The main thread waits later, in a call of C that uses a
    whole core (``cudaEventSynchronize``), and in no frame of a collective.
    """

    def work(seconds: float) -> None:
        if dist.get_rank() > 0:
            fault(seconds)
        dist.all_reduce(torch.ones(1), async_op=True)
        hashlib.pbkdf2_hmac("sha256", b"a core", b"for half a minute", 40_000_000)

    return work


def use_an_uncounted_group(seconds: float) -> None:
    importlib.import_module(
        "torch.testing._internal.distributed.fake_pg"
    )  # makes the backend known
    dist.new_group(backend="fake")
    if dist.get_rank() == 1:
        time.sleep(1.5)
        stop(seconds)


def stop_loaders(seconds: float) -> None:
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)


def compute(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(100_000))


def keep_the_lock(seconds: float) -> None:
    """Compute in one call of C that keeps Python's lock, as regular expressions and json do."""
    length = 18  # each letter more takes twice as long
    begin = time.monotonic()
    re.match("(a+)+$", "a" * length + "b")
    measured = time.monotonic() - begin
    length += math.ceil(math.log2(seconds / measured))
    re.match("(a+)+$", "a" * length + "b")


def ask(seconds: float) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(seconds)
    with ours, theirs, contextlib.suppress(TimeoutError):
        ours.recv(1)


def read_a_pipe(seconds: float) -> None:
    source, sink = os.pipe()
    threading.Timer(seconds, os.write, (sink, b"x")).start()
    os.read(source, 1)


def run_a_program(seconds: float) -> None:
    subprocess.run(["sleep", str(seconds)], check=True)


DOES: dict[str, Callable[[float], None]] = {
    "is stopped": stop,
    "is stopped in an answer": stop_in_an_answer,
    "waits for ever": wait_for_ever,
    "waits for ever, rank 0 for it": wait_for_others(wait_for_ever),
    "is stopped, rank 0 waits for it": wait_for_others(stop),
    "is stopped, rank 0 spins": spin_for_others(stop),
    "waits for ever, rank 0 spins": spin_for_others(wait_for_ever),
    "has a group that counts nothing": use_an_uncounted_group,
    "stops its loaders": stop_loaders,
    "computes": compute,
    "keeps the lock": keep_the_lock,
    "sleeps": time.sleep,
    "asks": ask,
    "reads a pipe": read_a_pipe,
    "runs a program": run_a_program,
}
