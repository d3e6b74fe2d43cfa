"""Loading processes leave the signals that end a job to the process that trains."""

from __future__ import annotations

import os
import signal
import time

import torch
from layouts import Numbers

from trainer.data.worker_signals import ignore_signals


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
