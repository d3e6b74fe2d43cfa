"""Optimizers that cannot step parts of parameters, and rates that a schedule puts back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import LambdaLR

from ..config.rules import OPTIMIZERS
from ..errors import Origin
from ..hooks import Callback
from ..run import Built, Run
from ..task import own_optimizer

if TYPE_CHECKING:
    from torch.optim import Optimizer


class DivisibleOptimizer(Callback):
    """Tries a fresh optimizer on small tensors."""

    def on_optimizer(self, run: Built, optimizer: Optimizer) -> None:
        """Raise ``ConfigError`` if ranks would step otherwise than one process. Collective."""
        held = run.strategy.held
        if not held or hasattr(optimizer, "bind"):  # a WholeOptimizer of optim/whole.py
            return

        from ..strategies.optimizer_probe import divided_step_problem

        problem = divided_step_problem(optimizer, run.strategy.step_device)
        if problem:
            built_by = own_optimizer(run.task)
            origin, kind = run.plan.origin("optimizer"), run.plan.optimizer
            if built_by:
                origin, kind = Origin(built_by), type(optimizer).__qualname__
            name = type(optimizer).__name__.lower()
            other = f"optimizer: {name}" if name in OPTIMIZERS else "another one"
            raise origin.error(
                f"each process holds {held} here, and {problem}; run it on replicas (DDP) or in "
                f"one process, or take {other}",
                kind,
            )


class KeptRates(Callback):
    """Tells of a learning rate that a callback has set, and that the schedule will put back.

    A schedule of this package and of transformers sets each rate anew after each step. So a rate
    holds for a single step, unless a callback sets the rate after every step.
    """

    _is_told = False

    def before_update(self, run: Run) -> None:
        schedule = run.schedule
        if self._is_told or not isinstance(schedule, LambdaLR):
            return
        groups = zip(schedule.optimizer.param_groups, schedule.get_last_lr(), strict=True)
        for group, planned in groups:
            # The host would wait for a rate on the device.
            if isinstance(planned, float) and group["lr"] != planned:
                self._is_told = True
                run.say(
                    f"note: a callback has set the learning rate {group['lr']:g}, for this step "
                    f"alone: the schedule sets each rate anew ({planned:g}); set the rate in each "
                    "on_step to keep it"
                )
                return
