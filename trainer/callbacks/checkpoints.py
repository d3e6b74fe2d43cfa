"""Checkpoints during training, and at its end."""

from __future__ import annotations

import math

from ..errors import CheckpointError
from ..hooks import Callback, StepInfo
from ..run import Run


class SaveCheckpoints(Callback):
    """Saves every ``save_every`` steps and at the end.

    The last hook of the row, so that the state of all others is in the checkpoint.

    Raises:
        TrainerError: the loss is not finite; nothing is saved, and what is complete stays.
        CheckpointError: a save failed, and ``on_save_error`` is ``stop``. The model is exported all
            the same.
    """

    def on_step(self, run: Run, info: StepInfo) -> None:
        if not info.is_last and not run.saves_at(info.step):
            return

        try:
            self._check_loss(run, info)
            run.save()
            if info.is_last:
                with run.meter.paused("saving"):
                    run.saver.finish()
        except CheckpointError as error:
            if info.is_last:  # there may be no checkpoint of these weights
                _export_after(run, error)
            raise

    def _check_loss(self, run: Run, info: StepInfo) -> None:
        """Refuse a loss that is not finite: the weights are worthless, or will be.

        Collective; one reduction, at saving steps only. ``save`` looks at the weights themselves.
        """
        # A step that was left out has changed no weight.
        leaves_steps_out = run.config.on_nan == "skip" or run.skipped_in_a_row
        if run.config.keep_last == 0 or leaves_steps_out:
            return

        loss = run.agreement.sum(float(info.loss))
        if not math.isfinite(loss):
            run.fail(f"step {info.step}: the loss is {loss}")


def _export_after(run: Run, error: CheckpointError) -> None:
    """Write the model though a save failed; a second failure is reported with the first."""
    try:
        run.export(run.directory.path / "model")
    except CheckpointError as second:
        if str(second) not in str(error):
            raise CheckpointError(f"{error}; and {second}") from None
