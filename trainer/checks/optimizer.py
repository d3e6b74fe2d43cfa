"""Optimizers that cannot step parts of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError, Origin, Problem
from ..hooks import Callback, Unfinished
from ..task import own_optimizer

if TYPE_CHECKING:
    from torch.optim import Optimizer


class DivisibleOptimizer(Callback):
    """Tries a fresh optimizer on small tensors, whole and divided."""

    def on_optimizer(self, run: Unfinished, optimizer: Optimizer) -> None:
        """Raise ``ConfigError`` if the optimizer cannot step parts of parameters. Collective."""
        problem = run.strategy.optimizer_problem(optimizer)
        if problem:
            built_by = own_optimizer(run.task)
            in_config = run.plan.origin("optimizer").named("optimizer")
            origin = Origin(built_by) if built_by else in_config
            rule = f"{problem}; run it on replicas (DDP) or in one process, or take another one"
            kind = type(optimizer).__qualname__ if built_by else run.plan.optimizer
            raise ConfigError(Problem(origin=origin, value=kind, rule=rule))
