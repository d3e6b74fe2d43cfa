"""The best model of a run, and its early end."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from ..checkpoint.disk import trusting_no_value
from ..errors import Origin
from ..evaluator import check_best_metric, prefix_of_metric
from ..hooks import Callback, StepInfo
from ..reporting.directory import json_text
from ..run import Run

# In the folder of the model, so that both are replaced at once and copied together.
FILE = "best.json"
STATE = ("metric", "mode", "best", "waited", "best_step")  # attributes that a checkpoint keeps


class Best(Callback):
    """Keeps the best model in ``best/``, and stops after ``patience`` evaluations without a best.

    ``best/best.json`` has the value, the step and all other values of that evaluation. Evaluations
    of other sets than the metric's do not count.

    Args:
        metric: for example ``eval/loss``. The same number on every rank, so all decide the same.
        mode: ``min`` or ``max``.
        patience: evaluations. None never stops.
    """

    best = math.inf  # the value times the sign
    best_step: int | None = None
    waited = 0

    def __init__(self, metric: str, mode: str, patience: int | None) -> None:
        self.metric = metric
        self.mode = mode
        self.sign = 1.0 if mode == "min" else -1.0
        self.patience = patience or math.inf

    def on_start(self, run: Run) -> None:
        """Forget the best model of another folder: a run that branches off."""
        is_there = run.agreement.of_main((run.directory.path / "best").is_dir())
        if self.best_step and not is_there:
            step = self.best_step
            run.say(f"note: best/ of step {step} is in another folder: {self.metric} starts anew")
            self.best, self.best_step, self.waited = math.inf, None, 0

    def on_step(self, run: Run, info: StepInfo) -> None:
        if not info.evaluation:
            return
        if self.metric not in info.evaluation:
            of_set = prefix_of_metric(self.metric, run.evaluation_sets)
            if any(name.startswith(of_set) for name in info.evaluation):
                check_best_metric(self.metric, info.evaluation, Origin("best_metric"))
            return

        value = self.sign * info.evaluation[self.metric]
        if value < self.best:
            self.best, self.best_step, self.waited = value, info.step, 0
            about = self.summary()["best"] | {
                "mode": self.mode,
                "epoch": info.epoch,
                "samples": info.samples,
                "evaluation": info.evaluation,
            }
            run.export(run.directory.path / "best", beside={FILE: json_text(about)})
            return

        self.waited += 1
        if self.waited >= self.patience:
            # The next step is the last, and may evaluate once more.
            run.stop(f"{self.metric} did not improve in {self.waited} evaluations", agreed=True)

    def pinned_steps(self) -> Collection[int]:
        return (self.best_step,) if self.best_step else ()

    def summary(self) -> Mapping[str, Any]:
        if not self.best_step:
            return {}
        best = {"metric": self.metric, "value": self.sign * self.best, "step": self.best_step}
        return {"best": best}

    def state_dict(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back the state. The state of another metric or mode is left alone."""
        with trusting_no_value("the state of best_metric"):
            if (state["metric"], state["mode"]) == (self.metric, self.mode):
                self.best, self.waited = float(state["best"]), int(state["waited"])
                self.best_step = state["best_step"] and int(state["best_step"])
