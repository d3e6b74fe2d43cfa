"""Checkpoints during training, and at the end."""

from __future__ import annotations

from ..errors import CheckpointError
from ..hooks import Callback, StepInfo
from ..run import Run


class SaveCheckpoints(Callback):
    """Saves every ``save_every`` steps and at the end.

    The last hook of the row, so that the state of all others is in the checkpoint.

    Raises:
        TrainerError: a value is not finite. Nothing is saved, and complete checkpoints stay.
        CheckpointError: a save failed, and ``on_save_error`` is ``stop``. The model is exported all
            the same.
    """

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
