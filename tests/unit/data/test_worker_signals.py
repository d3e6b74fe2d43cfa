"""Loading processes leave the signals that end a job to the process that trains."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
import torch
from layouts import Numbers

from trainer.data.worker_signals import ignore_signals


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, before[number])


@pytest.mark.usefixtures("handlers")
def test_the_signals_of_a_scheduler_and_of_ctrl_c_are_ignored() -> None:
    ignore_signals(0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        assert signal.getsignal(number) is signal.SIG_IGN


class Processes(Numbers):
    """Each item is the id of the process that has read it."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(os.getpid())


def test_a_worker_survives_the_signals_and_goes_on_reading() -> None:
    loader = torch.utils.data.DataLoader(
        Processes(40), batch_size=1, num_workers=1, worker_init_fn=ignore_signals
    )
    batches = iter(loader)
    worker = int(next(batches))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        os.kill(worker, number)
    time.sleep(0.1)
    assert [int(batch) for batch in batches] == [worker] * 39
