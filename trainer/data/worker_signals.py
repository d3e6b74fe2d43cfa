"""Loading processes and the signals that end a job."""

from __future__ import annotations

import signal


def ignore_signals(worker: int) -> None:
    """Leave a signal to the whole job to the process that trains: it takes its last steps with this
    worker's batches.

    torch ends workers by an event, and they end themselves where their process is gone.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
