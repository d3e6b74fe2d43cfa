"""The end of training: its last step, a signal, or a stop that code asked for."""

from __future__ import annotations

from ..hooks import Callback, StepInfo
from ..run import Run


class Stopping(Callback):
    """Has the ranks agree, at each step, whether training ends. Sets ``info.is_last``."""

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Set ``info.is_last``. Collective, but no step waits (``distributed/agreement.py``)."""
        signal = run.agreement.poll(run.strategy.fingerprint)
        if signal is not None:
            run.position.stopping = True
            run.position.stop_signal = signal
        info.is_last = run.position.stopping or run.step >= run.last_step
