"""When a run is evaluated: a trial before the first step, and each set when it is due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..errors import ConfigError, Origin
from ..evaluator import best_metric_problem
from ..hooks import Callback, StepInfo
from ..run import Run
from ..strategies.base import StepResult
from .log import Log


class Evaluation(Callback):
    """Measures each evaluation set when it is due, and all of them at the end of training.

    A run that a signal ends has no time for an evaluation: its checkpoint comes first. The sets
    that were due then are pending, and are measured first when the run is resumed.

    Args:
        log: gives the numbers of the last step, if a signal during the evaluation made it the last.

    Attributes:
        behind: the hooks behind this hook in the row. They see an evaluation that was pending.
        pending: the names of the sets.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self.behind: Sequence[Callback] = ()
        self.pending: list[str] = []

    def on_start(self, run: Run) -> None:
        """Measure the sets that a signal left no time for. Collective: call on every rank."""
        names = [name for name in self.pending if name in run.evaluation_sets]
        evaluation = run.evaluate(names) if names else {}
        if not evaluation:
            return

        self.pending = []
        nothing = torch.zeros(())
        info = StepInfo(
            step=run.step,
            epoch=run.train_data.epochs_at(run.samples),
            samples=run.samples,
            loss=nothing,
            grad_norm=nothing,
            update=StepResult(grad_norm=nothing),
            evaluation=evaluation,
        )
        for hook in self.behind:
            hook.on_step(run, info)

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Fill ``info.evaluation`` if a set is due. Collective: call on every rank."""
        regular = []
        for name, chosen in run.evaluation_sets.items():
            if chosen.every is not None and chosen.every.is_due_at(info.step):
                regular.append(name)
        due = list(run.evaluation_sets) if info.is_last else regular
        if due and not run.stop_signal:
            info.evaluation = run.evaluate(due) or None
        self.pending = regular if run.stop_signal and info.evaluation is None else []

        # A signal that came during the evaluation makes this step the last.
        if run.stop_signal and not info.is_last:
            info.is_last = True
            if info.metrics is None:
                info.metrics = self._log.measure(run, info)
        if info.is_last:
            run.evaluator.close()

    def state_dict(self) -> Mapping[str, Any]:
        return {"pending": self.pending} if self.pending else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.pending = list(state.get("pending", []))


class SanityEvaluation(Callback):
    """Evaluates one batch of each set before the first step, so that an error shows at once.

    The trial enters the task's code and the reduction over the ranks, and looks for ``best_metric``
    among the values. It changes no number of the run, and its values are shown nowhere: those of
    one batch mean little, and may be NaN.

    Args:
        best_metric: of the config, or None.
        origin: of ``best_metric``, for messages.
    """

    def __init__(self, best_metric: str | None, origin: Origin) -> None:
        self.best_metric = best_metric
        self.origin = origin

    def on_start(self, run: Run) -> None:
        """Raise the error that the evaluation raises. Collective: call on every rank.

        Raises:
            ConfigError: the task does not measure ``best_metric``.
        """
        names: list[str] = []
        if run.evaluation_sets:
            # Said before the trial, so that the origin of an error below this line is clear.
            names_of_sets = ", ".join(run.evaluation_sets)
            sets = f" of {names_of_sets}" if names_of_sets else ""
            run.say(f"sanity evaluation: one batch{sets} (sanity_evaluation: false leaves it out)")
            with run.meter.paused("evaluation"):
                names = list(run.evaluator.try_out())

        if self.best_metric is not None:
            problem = best_metric_problem(self.best_metric, names, self.origin)
            if problem is not None:
                raise ConfigError(problem)
