"""Find what only shows once data, model and optimizer are built, in one process on the CPU: ``check
--build``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from ..building.returned import data_of, optimizer_by
from ..errors import Origin, Problem, TrainerError
from ..optim.groups import check_settings_run
from ..strategies import strategy_class
from ..strategies.optimizer_probe import refusal
from ..task import own_optimizer
from ..text import did_you_mean
from .whole_model import build_whole

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..config.load import Loaded
    from ..plan import Plan
    from ..task import Data, Task

T = TypeVar("T")


def build_problems(task: Task, loaded: Loaded, plans: Sequence[Plan]) -> list[str]:
    """Build what ``task`` builds under the config's seed, and return what does not fit the plans,
    one line each.
    """
    from accelerate.utils import set_seed

    config, lines = loaded.config, _Lines(type(task).__qualname__)
    set_seed(config.seed)
    data = lines.attempt("build_data", data_of, task)
    model = lines.attempt("build_model", build_whole, task, config.seed)
    if model is None:
        return lines.found
    if not any(parameter.requires_grad for parameter in model.parameters()):
        lines.found.append("the model has no trainable parameters")
        return lines.found
    built_by = own_optimizer(task)
    for plan in plans:
        kind = strategy_class(plan.strategy)
        lines.found += map(str, kind.model_problems(plan, model))
        optimizer = lines.attempt("build_optimizer", optimizer_by, task, model, plan)
        if optimizer is not None and (problem := kind.optimizer_problem_alone(plan, optimizer)):
            lines.found.append(str(refusal(problem, optimizer, plan, built_by)))
        if optimizer is not None and built_by is not None:
            lines.attempt("build_optimizer", check_settings_run, config, plan, optimizer, built_by)
    if data is not None and (data.evaluation is not None or config.best_metric is not None):
        names = lines.attempt("evaluation_step", _evaluation_names, task, loaded, data, model)
        if names is not None and config.best_metric is not None and config.best_metric not in names:
            rule = f"the task measures no such value; {did_you_mean(config.best_metric, names)}"
            origin = loaded.origins.get("best_metric", Origin("TrainConfig", key="best_metric"))
            lines.found.append(str(Problem(origin=origin, value=config.best_metric, rule=rule)))
    return list(dict.fromkeys(lines.found))


class _Lines:
    """A collection of errors, the task's own ones with the method that raised them."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.found: list[str] = []

    def attempt(self, method: str, work: Callable[..., T], *arguments: Any) -> T | None:
        """Return what ``work`` returns; None where it raises."""
        try:
            return work(*arguments)
        except TrainerError as error:
            self.found.append(str(error))
        except Exception as error:  # whatever the task raises, the rest can still be checked
            text = str(error).strip().partition("\n")[0]
            self.found.append(f"{self.task}.{method}: {type(error).__name__}: {text}")
        return None


class _OneProcess:
    """The strategy of one process: a reduction changes nothing."""

    device = torch.device("cpu")

    @staticmethod
    def reduce(tensor: Tensor, reduction: str) -> Tensor:
        return tensor


def _evaluation_names(task: Task, loaded: Loaded, data: Data, model: nn.Module) -> list[str]:
    """Return the names of what an evaluation reports, from one batch of it."""
    from ..data.batches import Layout
    from ..data.evaluation import EvaluationBatches
    from ..metrics import WeightedSums

    config = loaded.config
    size = config.evaluation_batch_size or config.micro_batch_size
    layout = Layout(rank=0, world_size=1, micro_batch_size=size, accumulation_steps=1)
    batch, _ = next(
        iter(EvaluationBatches(data.evaluation, layout, batch_size=size, collate=data.collate))
    )
    sums = WeightedSums(task.build_metrics())
    model.eval()
    with torch.no_grad():
        sums.add(task.evaluation_step(model, batch))
    return [f"eval/{name}" for name in task.summarize(sums.reduce(cast(Any, _OneProcess)))]
