"""Evaluations during training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..hooks import Callback, Hooks, StepInfo
from ..run import Run
from .log import Log


class Evaluation(Callback):
    """Measures every ``eval_every`` steps and at the end of training.

    A run that a signal ends has no time for it: what it must have is its checkpoint. An evaluation
    that was due then is pending, and is made up first when the run is resumed.

    Args:
        log: gives the numbers of the last step, where a signal during the evaluation made it that.

    Attributes:
        behind: the hooks behind this one in the row, which see an evaluation that is made up.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self.behind = Hooks([])
        self.pending = False

    def on_start(self, run: Run) -> None:
        """Make up the evaluation that a signal left no time for."""
        if not self.pending or run.data.evaluation is None:
            return
        metrics = run.evaluate()
        if metrics:
            self.pending = False
            self.behind.on_step(run, _step_of(run, metrics))
        if run.stopping:
            run.evaluation_batches.close()

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Fill ``info.evaluation`` where it is due. Collective: call on every rank."""
        self.pending = False
        is_regular = run.eval_every is not None and info.step % run.eval_every == 0
        if run.data.evaluation is not None and (info.is_last or is_regular):
            if not run.stop_signal:
                info.evaluation = run.evaluate() or None
            is_cut_off = bool(run.stop_signal) and info.evaluation is None
            self.pending = is_regular and is_cut_off

        # A signal that came during the evaluation makes this step the last one.
        if run.stop_signal and not info.is_last:
            info.is_last = True
            if info.metrics is None:
                info.metrics = self._log.measure(run, info)
        if info.is_last:
            run.evaluation_batches.close()

    def state_dict(self) -> Mapping[str, Any]:
        return {"pending": True} if self.pending else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.pending = bool(state.get("pending"))


def _step_of(run: Run, metrics: dict[str, float]) -> StepInfo:
    """Return the step that the run is at, with its evaluation alone: nothing was trained."""
    nothing = torch.zeros(())
    return StepInfo(
        step=run.step,
        epoch=run.train_data.epochs_at(run.samples),
        samples=run.samples,
        loss=nothing,
        grad_norm=nothing,
        evaluation=metrics,
    )
