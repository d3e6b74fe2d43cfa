"""The best model of a run, and its early end."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ..errors import CheckpointError, TrainerError
from ..evaluator import set_of_metric
from ..hooks import Callback, StepInfo
from ..reporting.directory import json_text
from ..run import Run
from ..text import did_you_mean

# In the folder of the model and not beside it: both are replaced at once, and are copied together.
# What loads a model looks for files of other names.
FILE = "best.json"


class Best(Callback):
    """Keeps the best model under ``best/``, and stops after ``patience`` evaluations without it.

    ``best/best.json`` has its value, its step and what else was measured at it. Evaluations of
    other sets than the metric's do not count.

    Args:
        metric: for example ``eval/loss``; the same number on every rank, so all decide the same.
        mode: ``min`` or ``max``.
        patience: evaluations; None never stops.
    """

    def __init__(self, metric: str, mode: str, patience: int | None) -> None:
        self.metric = metric
        self.mode = mode
        self.sign = 1.0 if mode == "min" else -1.0
        self.patience = patience
        self.best = math.inf  # the value times the sign
        self.best_step: int | None = None
        self.waited = 0

    def on_start(self, run: Run) -> None:
        """Forget a best model that is not here: a run that branches off has another folder."""
        is_there = run.agreement.gather((run.directory.path / "best").is_dir())
        if self.best_step is not None and not is_there[0]:
            run.say(
                f"note: best/, of step {self.best_step}, is not in this output_dir: "
                f"{self.metric} starts anew"
            )
            self.best, self.best_step, self.waited = math.inf, None, 0

    def on_step(self, run: Run, info: StepInfo) -> None:
        if info.evaluation is None or not self._is_of_set_measured(run, info.evaluation):
            return
        if self.metric not in info.evaluation:
            hint = did_you_mean(self.metric, info.evaluation)
            raise TrainerError(f"best_metric: {self.metric!r}: was not measured; {hint}")

        value = self.sign * info.evaluation[self.metric]
        if value < self.best:
            self.best, self.best_step, self.waited = value, info.step, 0
            run.export(run.directory.path / "best", beside={FILE: json_text(self._about(info))})
            return

        self.waited += 1
        if self.waited == self.patience:
            # The next step is the last one, and may evaluate once more.
            run.stop(f"{self.metric} did not improve in {self.waited} evaluations", agreed=True)

    def _is_of_set_measured(self, run: Run, evaluation: Mapping[str, float]) -> bool:
        """Return whether the set of the metric was measured; true for a set that is not there."""
        name = set_of_metric(self.metric, list(run.evaluation_sets))
        if name is None:
            return True
        prefix = run.evaluation_sets[name].prefix
        return any(metric.startswith(prefix) for metric in evaluation)

    def _about(self, info: StepInfo) -> dict[str, Any]:
        """Return what is known of the best model: its value, its step, and its other values."""
        return {
            "metric": self.metric,
            "mode": self.mode,
            "value": self.sign * self.best,
            "step": info.step,
            "epoch": info.epoch,
            "samples": info.samples,
            "evaluation": info.evaluation,
        }

    def pinned_steps(self) -> Collection[int]:
        return () if self.best_step is None else (self.best_step,)

    def summary(self) -> Mapping[str, Any]:
        if self.best_step is None:
            return {}
        value = self.sign * self.best
        return {"best": {"metric": self.metric, "value": value, "step": self.best_step}}

    def state_dict(self) -> Mapping[str, Any]:
        return {
            "metric": self.metric,
            "best": self.best,
            "waited": self.waited,
            "best_step": self.best_step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back the state; that of another metric says nothing.

        Raises:
            CheckpointError: it is no such state.
        """
        if state.get("metric") != self.metric:
            return

        best, waited, step = state.get("best"), state.get("waited"), state.get("best_step")
        if not (isinstance(best, int | float) and isinstance(waited, int)):
            raise CheckpointError(f"{dict(state)} is not what best_metric keeps")
        if not isinstance(step, int | None):
            raise CheckpointError(f"{dict(state)} is not what best_metric keeps")
        self.best, self.waited, self.best_step = best, waited, step
