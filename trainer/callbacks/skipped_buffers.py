"""Buffers of steps that are left out."""

from __future__ import annotations

from ..data.batches import Window
from ..hooks import Callback, StepInfo
from ..run import Run
from ..strategies.buffers import BuffersBefore


class SkippedBuffers(Callback):
    """Puts the buffers back where a step is left out (``on_nan: skip``).

    Its batch must not stay in the running statistics of a BatchNorm.
    """

    def on_start(self, run: Run) -> None:
        self._buffers = BuffersBefore(run.model)

    def on_window(self, run: Run, window: Window) -> None:
        self._buffers.take()

    def on_step(self, run: Run, info: StepInfo) -> None:
        assert info.update is not None, "a step of the loop"
        self._buffers.put_back(info.update.left_out)
