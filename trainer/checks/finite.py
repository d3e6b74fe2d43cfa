"""Hooks about numbers that are not finite (NaN, infinity). docs/architecture.md lists the rules.

The global norm of a step's gradient, the same on every rank, shows such a gradient, and the
strategy makes no step (``strategies/finite_step.py``). The scaler of fp16 may leave 31 steps in a
row out, until the scale fits. The loss of a step whose gradient is finite ends the run when the
step is logged or saved.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..data.batches import Window
from ..hooks import Callback, StepInfo
from ..run import Run
from ..strategies.buffers import buffers_before, put_back


class FiniteNumbers(Callback):
    """Ends the run at a gradient or loss that is not finite, or reports that the step was left out.

    All ranks act at the same step, without a vote. On a GPU the norm is read one step late, so that
    no step waits for the device, and at once if a step is logged, evaluated or saved.

    Args:
        on_nan: ``stop``, or ``skip`` such steps: they change neither weights nor the optimizer's
            state, while data and schedule move on.
    """

    patience = 32  # steps in a row: the scaler of fp16 halves the scale from 65,536 until it fits
    in_a_row = 0
    # A step, its norm on the way to the host, and when that has arrived.
    _on_its_way: tuple[StepInfo, Tensor, torch.cuda.Event] | None = None

    def __init__(self, on_nan: str) -> None:
        self.on_nan = on_nan

    def on_step(self, run: Run, info: StepInfo) -> None:
        if 0 < run.position.skipped_in_a_row < self.patience:
            return

        before, self._on_its_way = self._on_its_way, None
        if before:
            earlier, copy, arrived = before
            arrived.synchronize()
            self._judge(run, earlier, copy)
        norm = info.grad_norm
        is_saved = info.is_last or run.saves_at(info.step)
        is_shown = info.metrics or info.evaluation
        if norm.is_cuda and not is_shown and not is_saved:
            copy = norm.to("cpu", non_blocking=True)  # to page-locked memory
            self._on_its_way = info, copy, torch.cuda.current_stream().record_event()
            return
        self._judge(run, info, norm)

        loss = 0.0
        if info.metrics:
            loss = info.metrics["loss"]
        elif is_saved and run.config.keep_last:
            loss = sum(run.agreement.gather(float(info.loss)))
        if self.on_nan == "stop" and not math.isfinite(loss):
            run.fail(self._cause(run, info))

    def _judge(self, run: Run, info: StepInfo, norm: Tensor) -> None:
        """Act on the global norm of a step."""
        if math.isfinite(norm):
            self.in_a_row = 0
            return

        self.in_a_row += 1
        text = self._cause(run, info)
        if self.on_nan == "stop":
            run.fail(text)
        if self.in_a_row == self.patience:
            run.fail(f"{text}; {self.in_a_row} steps in a row were left out")
        run.position.skipped_steps += 1
        run.say(f"note: {text}; the step is left out")

    def _cause(self, run: Run, info: StepInfo) -> str:
        from .cause import cause_of

        return cause_of(run, info)


class SkippedBuffers(Callback):
    """Puts the buffers (statistics of a BatchNorm) back if a step is left out."""

    def on_start(self, run: Run) -> None:
        self._modules = list(run.model.modules())

    def on_window(self, run: Run, window: Window) -> None:
        self._before = buffers_before(self._modules)

    def on_step(self, run: Run, info: StepInfo) -> None:
        # A model without buffers does not wait for the device.
        if self._before and info.update.left_out:
            put_back(self._before)
