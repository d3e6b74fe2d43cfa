"""A trial of the evaluation before the first step."""

from __future__ import annotations

from ..building.evaluation import best_metric_problem
from ..errors import ConfigError, Origin
from ..hooks import Callback
from ..run import Run


class SanityEvaluation(Callback):
    """Evaluates one batch of each set before the first step, so that an error shows at once.

    It goes all the way: the task's code, the reduction over the ranks, and whether ``best_metric``
    is among the values. It changes no number of the run, and its values are shown nowhere: those of
    one batch mean little, and may be NaN.

    Args:
        best_metric: of the config, or None.
        origin: of ``best_metric``, for messages.
    """

    def __init__(self, best_metric: str | None, origin: Origin) -> None:
        self.best_metric = best_metric
        self.origin = origin

    def on_start(self, run: Run) -> None:
        """Raise what the evaluation raises. Collective: call on every rank.

        Raises:
            ConfigError: the task does not measure ``best_metric``.
        """
        names: list[str] = []
        if run.evaluation_sets:
            # Said before: what an error below it comes from is clear then.
            names_of_sets = ", ".join(run.evaluation_sets)
            sets = f" of {names_of_sets}" if names_of_sets else ""
            run.say(f"sanity evaluation: one batch{sets} (sanity_evaluation: false leaves it out)")
            names = list(run.try_evaluation())

        if self.best_metric is not None:
            problem = best_metric_problem(self.best_metric, names, self.origin)
            if problem is not None:
                raise ConfigError(problem)
