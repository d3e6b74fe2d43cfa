"""Evaluations during training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ..building.evaluation import UNNAMED
from ..hooks import Callback, Hooks, StepInfo
from ..run import Run
from .log import Log


class Evaluation(Callback):
    """Measures each evaluation set when it is due, and all of them at the end of training.

    A run that a signal ends has no time for it: what it must have is its checkpoint. Sets that were
    due then are pending, and are made up first when the run is resumed.

    Args:
        log: gives the numbers of the last step, where a signal during the evaluation made it that.

    Attributes:
        behind: the hooks behind this one in the row, which see an evaluation that is made up.
        pending: the names of the sets to make up.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self.behind = Hooks([])
        self.pending: list[str] = []

    def on_start(self, run: Run) -> None:
        """Make up the evaluation that a signal left no time for."""
        names = [name for name in self.pending if name in run.evaluation_sets]
        if not names:
            return

        metrics = run.evaluate(names)
        if metrics:
            self.pending = []
            self.behind.on_step(run, _step_of(run, metrics))
        if run.stopping:
            run.close_evaluation()

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Fill ``info.evaluation`` where it is due. Collective: call on every rank."""
        self.pending = []
        regular = []
        for name, chosen in run.evaluation_sets.items():
            if chosen.is_due_at(info.step):
                regular.append(name)
        due = list(run.evaluation_sets) if info.is_last else regular
        if due:
            if not run.stop_signal:
                info.evaluation = run.evaluate(due) or None
            if run.stop_signal and info.evaluation is None:
                self.pending = regular

        # A signal that came during the evaluation makes this step the last one.
        if run.stop_signal and not info.is_last:
            info.is_last = True
            if info.metrics is None:
                info.metrics = self._log.measure(run, info)
        if info.is_last:
            run.close_evaluation()

    def state_dict(self) -> Mapping[str, Any]:
        return {"pending": self.pending} if self.pending else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pending = state.get("pending", [])
        # Older versions, which knew a single set only, wrote true.
        self.pending = [UNNAMED] if pending is True else list(pending)


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
