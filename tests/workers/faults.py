"""A task whose rank ends, stops or waits for ever, at a place that the settings name."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from accelerate.tracking import TensorBoardTracker
from digits_cnn import DigitsCNN
from torch import Tensor, nn

from trainer import Data

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


def _raise() -> None:
    raise RuntimeError("the cat sat on the keyboard")


def _lose_the_tracker() -> None:
    def log(self: TensorBoardTracker, values: Any, step: int) -> None:
        time.sleep(12)  # the client's own attempts
        raise ConnectionRefusedError("its server is gone")

    TensorBoardTracker.log = log


def _ask_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _ask_to_stop_slowly() -> None:
    _ask_to_stop()
    time.sleep(0.05)


def _ask_the_launcher_to_stop() -> None:
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(1)  # until it has handed that on


def _ask_everyone_to_stop() -> None:
    launcher = psutil.Process(os.getppid())
    for process in (launcher, *launcher.children(recursive=True)):
        process.terminate()


def _fill_the_disk(path: Path) -> None:
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def _make_read_only(folder: Path) -> None:
    for words in (["--bind", folder, folder], ["-o", "remount,bind,ro", folder]):
        subprocess.run(["mount", *words], check=True)


FAULTS = {
    "killed": _kill,
    "stopped": _stop,
    "aborts": os.abort,
    "exits": _exit,
    "vanishes": _vanish,
    "waits": _wait_for_ever,
    "meets alone": _meet_alone,
    "raises": _raise,
    "loses the tracker": _lose_the_tracker,
    "SIGTERM": _ask_to_stop,
    "SIGTERM, slowly": _ask_to_stop_slowly,
    "SIGTERM to the launcher": _ask_the_launcher_to_stop,
    "SIGTERM to all processes": _ask_everyone_to_stop,
}


class StuckImages:
    """Images of which the process that loads them waits for ever, or is killed, after a while."""

    def __init__(self, images: Any, after: int, stamp: str, fault: Callable[[], None]) -> None:
        self.images, self.left, self.stamp, self.fault = images, after, stamp, fault

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        self.left -= 1
        if self.left < 0:
            Path(self.stamp).write_text(str(time.time()))
            self.fault()
        return self.images[index]


@dataclass(frozen=True, kw_only=True)
class Faulty(DigitsCNN):
    """Trains until one rank has a fault, and writes the time of it to a file. If the launcher starts
    the job again, there is no fault.

    Args:
        fault: a key of FAULTS, ``loader`` or ``loader killed``, ``nan`` (the loss), ``fills the
            disk`` (where ``stamp`` is), ``fills the disk and waits``, ``is read-only`` (the folder
            of checkpoints beside ``stamp``).
        at: ``step``, ``evaluation``, ``save`` (its files are written) or ``export``.
        after: calls of training_step.
    """

    # (compare=False: a run resumes without the fault.)
    fault: str = field(default="", compare=False)
    at: str = field(default="step", compare=False)
    rank: int = field(default=1, compare=False)
    after: int = field(default=8, compare=False)
    stamp: str = field(default="stamp", compare=False)

    def build_data(self) -> Data:
        data = super().build_data()
        if self.fault in ("loader", "loader killed") and self._here():
            fault = _wait_for_ever if self.fault == "loader" else _kill
            return replace(data, train=StuckImages(data.train, 260, self.stamp, fault))
        return data

    def build_model(self) -> nn.Module:
        if self.fault and self.at in ("save", "export"):
            flush = os.fsync

            def faulty(file: int) -> None:
                name = os.readlink(f"/proc/self/fd/{file}")
                wanted = "/model" if self.at == "export" else "00000006"
                if self._here() and wanted in name:
                    self._fail()
                flush(file)

            os.fsync = faulty
        return super().build_model()

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        global calls
        calls += torch.is_grad_enabled()  # the trial of the loss is not counted
        if self.fault and self.at == "step" and calls == self.after and self._here():
            self._fail()
            if self.fault == "nan":
                return super().training_step(model, batch) * float("nan")
        return super().training_step(model, batch)

    def evaluation_step(self, model: nn.Module, batch: Any) -> Any:
        if self.fault and self.at == "evaluation" and self._here():
            self._fail()
        return super().evaluation_step(model, batch)

    def _here(self) -> bool:
        is_first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        return is_first and int(os.environ.get("RANK", "0")) == self.rank

    def _fail(self) -> None:
        Path(self.stamp).write_text(str(time.time()))
        if self.fault.startswith("fills the disk"):
            _fill_the_disk(Path(self.stamp).with_name("filled"))
            if self.fault.endswith("and waits"):
                _wait_for_ever()
        elif self.fault == "is read-only":
            _make_read_only(Path(self.stamp).with_name("run") / "checkpoints")
        elif self.fault != "nan":
            FAULTS[self.fault]()
