"""The end of training: its last step, a signal, or a stop that code asked for."""

from __future__ import annotations

from ..hooks import Callback, StepInfo
from ..run import Run


class Stopping(Callback):
    """Has the ranks agree, at each step, whether it is the last one.

    It comes before every hook that reads ``info.is_last``.
    """

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Set ``info.is_last``. Collective, but no step waits for it (``distributed/votes.py``)."""
        signal = run.agreement.poll(run.strategy.fingerprint)
        if signal is not None:
            run.stopping = True
            run.stop_signal = signal
        info.is_last = run.stopping or run.step >= run.total_steps
