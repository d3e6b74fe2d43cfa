"""Models that a callback left in evaluation mode."""

from __future__ import annotations

from ..data.batches import Window
from ..hooks import Callback
from ..run import Run
from ..strategies.tensors import unwrapped


class TrainingMode(Callback):
    """Puts the model back into training mode after a callback has measured something.

    Otherwise dropout would be off from then on, and BatchNorm would not follow the data.
    """

    def on_window(self, run: Run, window: Window) -> None:
        if not unwrapped(run.model).training:
            run.train_mode()
