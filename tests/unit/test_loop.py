"""The Trainer's signal handlers and threads."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from brought_tasks import Plain
from from_launcher import configured

from trainer import Trainer

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


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


def test_fit_works_in_a_thread(tmp_path: Path) -> None:
    found: list[object] = []

    def work() -> None:
        found.append(Trainer(Plain(), configured(tmp_path / "run")).fit())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [{"eval/loss": pytest.approx(11.8, abs=1.0)}]
