"""A task whose rank ends, stops or waits for ever, at a place that the settings name."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from trainer import Data

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from digits_cnn import DigitsCNN

calls = 0


def _wait_for_ever() -> None:
    threading.Event().wait()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _exit() -> None:
    sys.exit(0)


def _vanish() -> None:
    os._exit(0)


def _meet_alone() -> None:
    dist.barrier()


FAULTS = {
    "killed": _kill,
    "stopped": _stop,
    "aborts": os.abort,
    "exits": _exit,
    "vanishes": _vanish,
    "waits": _wait_for_ever,
    "meets alone": _meet_alone,
}


class StuckImages:
    """Images that come no more after a while."""

    def __init__(self, images: Any, after: int, stamp: str) -> None:
        self.images, self.left, self.stamp = images, after, stamp

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        self.left -= 1
        if self.left < 0:
            Path(self.stamp).write_text(str(time.time()))
            _wait_for_ever()
        return self.images[index]


@dataclass(frozen=True, kw_only=True)
class Faulty(DigitsCNN):
    """Trains until one rank has a fault, and writes the time of it to a file.

    Args:
        fault: a key of FAULTS, ``loader``, or what is none: ``busy`` (computes for ``busy_seconds`` while the others
            wait), ``asleep on the network`` (waits as long for an answer) and ``sleeps``.
        at: ``step``, ``evaluation``, ``save`` (its files are written) or ``export``.
        after: calls of training_step.
    """

    # (compare=False: a run goes on without the fault.)
    fault: str = field(default="", compare=False)
    at: str = field(default="step", compare=False)
    rank: int = field(default=1, compare=False)
    after: int = field(default=8, compare=False)
    stamp: str = field(default="stamp", compare=False)
    busy_seconds: float = field(default=20.0, compare=False)

    def build_data(self) -> Data:
        data = super().build_data()
        if self.fault == "loader" and self._here():
            return Data(
                train=StuckImages(data.train, 260, self.stamp), evaluation=data.evaluation, collate=data.collate
            )
        return data

    def build_model(self) -> nn.Module:
        if self.fault and self.at in ("save", "export"):
            flush = os.fsync

            def faulty(file: int) -> None:
                name = os.readlink(f"/proc/self/fd/{file}")
                if self._here() and ("/model" in name if self.at == "export" else "00000006" in name):
                    self._fail()
                flush(file)

            os.fsync = faulty
        return super().build_model()

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        global calls
        calls += 1
        if self.fault and self.at == "step" and calls == self.after and self._here():
            self._fail()
        return super().training_step(model, batch)

    def evaluation_step(self, model: nn.Module, batch: Any) -> Any:
        if self.fault and self.at == "evaluation" and self._here():
            self._fail()
        return super().evaluation_step(model, batch)

    def _here(self) -> bool:
        return int(os.environ.get("RANK", "0")) == self.rank

    def _fail(self) -> None:
        Path(self.stamp).write_text(str(time.time()))
        if self.fault == "busy":
            end = time.monotonic() + self.busy_seconds
            while time.monotonic() < end:
                sum(range(100_000))
        elif self.fault == "asleep on the network":
            ours, theirs = socket.socketpair()
            ours.settimeout(self.busy_seconds)
            with ours, theirs, contextlib.suppress(TimeoutError):
                ours.makefile("rb").read(1)
        elif self.fault == "sleeps":
            time.sleep(self.busy_seconds)
        else:
            FAULTS[self.fault]()
