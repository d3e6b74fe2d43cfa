"""Checkpoints during training, and at the end."""

from __future__ import annotations

from ..errors import CheckpointError
from ..hooks import Callback, StepInfo
from ..run import Run


class SaveCheckpoints(Callback):
    """Saves every ``save_every`` steps and at the end, behind all hooks whose state is saved."""

    def on_step(self, run: Run, info: StepInfo) -> None:
        if not info.is_last and not run.saves_at(info.step):
            return

        try:
            run.save()
            if info.is_last:
                with run.meter.paused("saving"):
                    run.saver.finish()
        except CheckpointError:
            if info.is_last:  # there may be no checkpoint of these weights
                run.export(run.directory.path / "model")
            raise
