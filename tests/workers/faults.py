"""A task whose rank ends, stops or waits for ever, at a place that the settings name."""

from __future__ import annotations

import contextlib
import ctypes
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
from trainer.distributed import exit

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


def _keep_the_lock() -> None:
    """Stay in one call of C that keeps Python's lock, as regular expressions and json do."""
    ctypes.PyDLL(None).sleep(40)


def _sleep() -> None:
    time.sleep(70)


def _run_a_program() -> None:
    subprocess.run(["sleep", "70"], check=True)


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
    "keeps the lock": _keep_the_lock,
    "sleeps": _sleep,
    "runs a program": _run_a_program,
    "meets alone": _meet_alone,
    "raises": _raise,
    "loses the tracker": _lose_the_tracker,
    "SIGTERM": _ask_to_stop,
    "SIGTERM, slowly": _ask_to_stop_slowly,
    "SIGTERM to the launcher": _ask_the_launcher_to_stop,
    "SIGTERM to all processes": _ask_everyone_to_stop,
}


class Watched:
    """Images, with a call before each is read."""

    def __init__(self, images: Any, before: Callable[[], None]) -> None:
        self.images, self.before = images, before

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        self.before()
        return self.images[index]


def _after_the_training(work: Callable[[], None]) -> None:
    """Call ``work`` between the end of training and the last barrier of the process."""
    close_groups = exit._close_groups

    def close() -> None:
        work()
        close_groups()

    exit._close_groups = close


@dataclass(frozen=True, kw_only=True)
class Faulty(DigitsCNN):
    """Trains until a rank has a fault, and writes the time of it to a file. If the launcher starts
    the job again, there is no fault.

    Args:
        fault: a key of FAULTS, ``nan`` (the loss), ``fills the disk`` (where ``stamp`` is), ``fills
            the disk and waits``, ``is read-only`` (the folder of checkpoints beside ``stamp``).
        at: ``data`` (build_data), ``model`` (build_model), ``item`` (a sample is read), ``step``,
            ``state`` (state_dict), ``extras`` (save_extras), or ``end`` (behind the training), at a
            call that ``after`` counts; ``evaluation``, ``save`` (its files are written) or
            ``export``, at each call.
        rank: which rank has it. -2 are ranks 0 and 1.
    """

    # (compare=False: a run resumes without the fault.)
    fault: str = field(default="", compare=False)
    at: str = field(default="step", compare=False)
    rank: int = field(default=1, compare=False)
    after: int = field(default=8, compare=False)
    stamp: str = field(default="stamp", compare=False)

    def build_data(self) -> Data:
        self._pass("data")
        data = super().build_data()
        return replace(data, train=Watched(data.train, lambda: self._pass("item")))

    def build_model(self) -> nn.Module:
        self._pass("model")
        if self.at == "end":
            _after_the_training(lambda: self._pass("end"))
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
        has_failed = torch.is_grad_enabled() and self._pass("step")  # not in a trial of the loss
        loss = super().training_step(model, batch)
        return loss * float("nan") if has_failed and self.fault == "nan" else loss

    def evaluation_step(self, model: nn.Module, batch: Any) -> Any:
        if self.fault and self.at == "evaluation" and self._here():
            self._fail()
        return super().evaluation_step(model, batch)

    def state_dict(self) -> dict[str, Any]:
        self._pass("state")
        return {}

    def save_extras(self, directory: Path) -> None:
        self._pass("extras")

    def _pass(self, where: str) -> bool:
        """Fail at a call of a place. Returns whether this was the call."""
        if not self.fault or self.at != where or not self._here():
            return False
        global calls
        calls += 1
        if calls == self.after:
            self._fail()
        return calls == self.after

    def _here(self) -> bool:
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
            return False
        rank = int(os.environ.get("RANK", "0"))
        return rank == self.rank or (self.rank == -2 and rank < 2)

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
