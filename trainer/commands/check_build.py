"""Build a task on the CPU for ``trainer check --build``, and find what only shows then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from ..building.evaluation import best_metric_problem, measured_sets
from ..building.returned import data_of, optimizer_by
from ..errors import TrainerError, origin_of
from ..optim.groups import check_settings_run
from ..strategies import strategy_class
from ..task import own_optimizer
from .whole_model import build_whole

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..config.load import Loaded
    from ..plan import Plan
    from ..task import Data, Task

T = TypeVar("T")


def build_problems(task: Task, loaded: Loaded, plans: Sequence[Plan]) -> list[str]:
    """Build data, model and optimizer of a task, and return what is wrong, a line for each problem.

    Args:
        task: of the config.
        loaded: the training config.
        plans: of the config under each launch file; the model and the optimizer must suit them.
    """
    from accelerate.utils import set_seed

    set_seed(loaded.config.seed)
    problems = _Problems(type(task).__qualname__)
    data = problems.attempt("build_data", data_of, task)
    model = problems.attempt("build_model", build_whole, task, loaded.config.seed)
    if model is None:
        return problems.lines
    if not any(parameter.requires_grad for parameter in model.parameters()):
        problems.lines.append("the model has no trainable parameters")
        return problems.lines

    for plan in plans:
        _check_plan(problems, task, loaded, plan, model)
    if data is not None:
        _check_evaluation(problems, task, loaded, data, model)
    return list(dict.fromkeys(problems.lines))  # each once: most plans find the same


class _Problems:
    """The problems found so far; those in the task's own code with the method that raised them."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.lines: list[str] = []

    def attempt(self, method: str, work: Callable[..., T], *arguments: Any) -> T | None:
        """Return what ``work`` returns; or add a line for the error it raises, and return None."""
        try:
            return work(*arguments)
        except TrainerError as error:
            self.lines.append(str(error))
        except Exception as error:  # whatever the task raises, the rest can still be checked
            text = str(error).strip().partition("\n")[0]
            self.lines.append(f"{self.task}.{method}: {type(error).__name__}: {text}")

        return None


def _check_plan(
    problems: _Problems, task: Task, loaded: Loaded, plan: Plan, model: nn.Module
) -> None:
    """Check that the strategy of a plan can train the model, and the task's optimizer on it."""
    strategy = strategy_class(plan.strategy)
    problems.lines += map(str, strategy.model_problems(plan, model))

    optimizer = problems.attempt("build_optimizer", optimizer_by, task, model, plan)
    if optimizer is None:
        return

    built_by = own_optimizer(task)
    if built_by is not None:
        arguments = (loaded.config, plan, optimizer, built_by)
        problems.attempt("build_optimizer", check_settings_run, *arguments)


def _check_evaluation(
    problems: _Problems, task: Task, loaded: Loaded, data: Data, model: nn.Module
) -> None:
    """Evaluate one batch of each set, and check that ``best_metric`` is among the metrics."""
    names = problems.attempt("evaluation_step", _evaluation_names, task, loaded, data, model)
    best_metric = loaded.config.best_metric
    if names is None or best_metric is None:
        return

    origin = origin_of(loaded.origins, "best_metric")
    problem = best_metric_problem(best_metric, names, origin)
    if problem is not None:
        problems.lines.append(str(problem))


class _OneProcess:
    """The part of a strategy that sums of metrics need, for one process: nothing to reduce."""

    device = torch.device("cpu")

    @staticmethod
    def reduce(tensor: Tensor, reduction: str) -> Tensor:
        return tensor


def _evaluation_names(task: Task, loaded: Loaded, data: Data, model: nn.Module) -> list[str]:
    """Return the names of the metrics that an evaluation reports, from one batch of each set."""
    from ..data.batches import Layout
    from ..data.now import Now, at
    from ..metrics import WeightedSums

    config = loaded.config
    size = config.evaluation_batch_size or config.micro_batch_size
    layout = Layout(rank=0, world_size=1, micro_batch_size=size, accumulation_steps=1)

    model.eval()
    names: list[str] = []
    for measured_set in measured_sets(task, data, layout, batch_size=size).values():
        moment = Now(0, 0.0, 0, 1, measured_set.name, config.seed)
        with at(moment), torch.no_grad():
            batch, _ = measured_set.batches.first()
            sums = WeightedSums(measured_set.build_metrics())
            sums.add(measured_set.evaluation_step(model, batch))
        if measured_set.has_own_step:
            sums.keep(sums.named)
        metrics = task.summarize(sums.reduce(cast(Any, _OneProcess)))
        names += [f"{measured_set.prefix}{name}" for name in metrics]
    return names
