"""A task of large layers, whose ranks are stopped, wait for ever, or take their time by right."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainer import Data, Task
from trainer.distributed import exit


@dataclass(frozen=True, kw_only=True)
class Hanging(Task):
    """Trains on sums, until a rank takes its time, is stopped, or waits for ever.

    Args:
        width: of the hidden layers; from 400 on they have more elements than what ZeRO-3 keeps
            whole.
        does: a key of ``DOES``; "" for nothing.
        at: where: ``data`` (``build_data``), ``model`` (``build_model``), ``item`` (the sample of
            an index that rank has in its first step), ``step``, ``state`` (``state_dict``),
            ``extras`` (``save_extras``) or ``end`` (behind the training).
        rank: which rank does it. -1 are all, and -2 are ranks 0 and 1.
        after: at which call there.
        seconds: for which what takes its time does so.
        stamp: a file that is written before it is done.
    """

    width: int = 16
    does: str = field(default="", compare=False)
    at: str = field(default="step", compare=False)
    rank: int = field(default=1, compare=False)
    after: int = field(default=3, compare=False)
    seconds: float = field(default=25.0, compare=False)
    stamp: str = field(default="", compare=False)

    def build_data(self) -> Data:
        self._pass("data")
        return Data(train=Rows(4096, lambda: self._pass("item")), evaluation=Rows(64, lambda: None))

    def build_model(self) -> nn.Module:
        self._pass("model")
        if self.at == "end":
            after_last_step(lambda: self._pass("end"))
        hidden = nn.Linear(self.width, self.width)
        return nn.Sequential(
            nn.Linear(8, self.width), nn.Tanh(), hidden, nn.Tanh(), nn.Linear(self.width, 1)
        )

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        self._pass("step")
        return nn.functional.mse_loss(model(batch["row"]), batch["sum"])

    def state_dict(self) -> dict[str, Any]:
        self._pass("state")
        return {}

    def save_extras(self, directory: Path) -> None:
        self._pass("extras")

    def _pass(self, where: str) -> None:
        rank = int(os.environ.get("RANK", "0"))
        is_here = self.rank in (-1, rank) or (self.rank == -2 and rank < 2)
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


def after_last_step(work: Callable[[], None]) -> None:
    """Call ``work`` between the end of training and the last barrier of the process."""
    close_groups = exit._close_groups

    def close() -> None:
        work()
        close_groups()

    exit._close_groups = close


def stop(seconds: float) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def kill(seconds: float) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_ever(seconds: float) -> None:
    threading.Event().wait()


def keep_the_lock(seconds: float) -> None:
    """Stay in one call of C that keeps Python's lock, as regular expressions and json do."""
    ctypes.PyDLL(None).sleep(int(seconds))


def run_a_program(seconds: float) -> None:
    subprocess.run(["sleep", str(seconds)], check=True)


DOES: dict[str, Callable[[float], None]] = {
    "is stopped": stop,
    "is killed": kill,
    "waits for ever": wait_for_ever,
    "keeps the lock": keep_the_lock,
    "sleeps": time.sleep,
    "runs a program": run_a_program,
}
