"""The Trainer's signal handlers and threads."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import psutil
import pytest
from brought_tasks import Plain
from from_launcher import configured

from trainer import Callback, Run, StepInfo, Trainer
from trainer.distributed.exit import Stopped


class Fails(Plain):
    def training_step(self, model: object, batch: object) -> object:
        raise ZeroDivisionError("in the first step")


def test_signal_handlers_are_given_back_after_an_error(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(ZeroDivisionError):
        Trainer(Fails(), configured(tmp_path / "fails")).fit()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    Trainer(Plain(), configured(tmp_path / "fine")).fit()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


class ToTheGroup(Callback):
    """Sends SIGTERM to this process and those that load data for it, as schedulers do."""

    def __init__(self) -> None:
        self.others = set(psutil.Process().children())

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        if info.step == 3:
            workers = set(psutil.Process().children()) - self.others
            assert workers
            for process in (*workers, psutil.Process()):
                process.terminate()


def test_a_signal_to_the_whole_group_leaves_the_data_workers_until_the_last_step(
    tmp_path: Path,
) -> None:
    config = configured(tmp_path / "run", max_steps=100_000, workers=1, log_every=100)
    trainer = Trainer(Plain(), config, callbacks=[ToTheGroup()])
    with pytest.raises(Stopped):
        trainer.fit()
    assert trainer.run.step > 3
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == [
        f"step-{trainer.run.step:08}"
    ]


def test_fit_works_in_a_thread(tmp_path: Path) -> None:
    found: list[object] = []

    def work() -> None:
        found.append(Trainer(Plain(), configured(tmp_path / "run")).fit())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [{"eval/loss": pytest.approx(11.8, abs=1.0)}]
