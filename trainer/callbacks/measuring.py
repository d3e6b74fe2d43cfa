"""The evaluations of a run: a trial before the first step, and each set when due."""

from __future__ import annotations

from collections.abc import Collection

from ..evaluator import check_best_metric
from ..hooks import Callback, StepInfo
from ..run import Run
from .log import Log


class Evaluation(Callback):
    """Measures each evaluation set when due, and all sets at the end of training.

    A run that a signal ends has no time for an evaluation: the checkpoint comes first.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Fill ``info.evaluation`` if a set is due."""
        due = [
            name
            for name, chosen in run.evaluation_sets.items()
            if info.is_last or (chosen.every and chosen.every.is_due_at(info.step))
        ]
        if due and not run.stop_signal:
            info.evaluation = run.evaluate(due) or None

        # A signal that came during the evaluation makes this step the last.
        if run.stop_signal and not info.is_last:
            info.is_last = True
            if not info.metrics:
                info.metrics = self._log.measure(run, info)
        if info.is_last:
            run.evaluator.close()


class SanityEvaluation(Callback):
    """Evaluates a batch of each set before the first step, so that an error shows at once.

    The values are shown nowhere: those of a single batch mean little, and may be NaN.
    """

    def on_start(self, run: Run) -> None:
        """Raise the error of the evaluation, or of a ``best_metric`` that the task lacks."""
        names: Collection[str] | None = ()
        if run.evaluation_sets:
            # Said before the trial, so that the origin of an error below this line is clear.
            run.say("sanity evaluation: one batch of each set (sanity_evaluation: false skips it)")
            with run.meter.paused("evaluation"):
                names = run.evaluator.try_out()

        metric = run.config.best_metric
        if metric and names is not None:
            check_best_metric(metric, names, run.plan.origin("best_metric"))
