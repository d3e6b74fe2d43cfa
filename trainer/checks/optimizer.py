"""Optimizers that cannot step parts of parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
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
            from ..strategies.optimizer_probe import refusal

            raise ConfigError(refusal(problem, optimizer, run.plan, own_optimizer(run.task)))
