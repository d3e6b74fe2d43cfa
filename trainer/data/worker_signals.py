"""Loading processes and the signals that end a job."""

from __future__ import annotations

import signal


def ignore_signals(worker: int) -> None:
    """Ignore the signals that are sent to all processes of a job. For ``worker_init_fn``.

    The process that trains answers them, and needs this worker's batches for the last steps. torch
    ends workers in another way, and workers end themselves when the parent process is gone.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
