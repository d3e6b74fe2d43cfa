"""State and parameters that a task keeps in its attributes: no checkpoint and no step has them."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..data.digest import traces
from ..errors import LaunchError
from ..hooks import Callback, StepInfo
from ..run import Run
from ..task import Task
from ..text import listed


class TaskState(Callback):
    """Tells which attributes of a task change while the task trains, if it has no ``state_dict``.

    Compares after the second step, and before each checkpoint, with the end of the first step,
    which may fill caches. Refuses parameters that only the task holds, and that have gradients.
    """

    _before: dict[str, Any] | None = None
    _looks = True

    def before_update(self, run: Run) -> None:
        """Raise ``LaunchError`` in the first step if a parameter of the task gets a gradient."""
        if self._before is not None:
            return
        of_model = set(run.model.parameters())
        for name, value in vars(run.task).items():
            own = value.parameters() if isinstance(value, nn.Module) else [value]
            if any(
                isinstance(parameter, nn.Parameter)
                and parameter.grad is not None
                and parameter not in of_model
                for parameter in own
            ):
                raise LaunchError(
                    f"{type(run.task).__qualname__}.{name} gets gradients, and nothing trains its "
                    "parameters: make them a part of the module that build_model returns, or "
                    "freeze them (requires_grad_(False))"
                )

    def on_step(self, run: Run, info: StepInfo) -> None:
        if self._looks:
            self._looks = self._before is None
            self.on_save(run)

    def on_save(self, run: Run) -> None:
        """Tell the attributes that have changed, once."""
        now = traces(run.task)
        before = now if self._before is None else self._before
        changed = [name for name, trace in before.items() if now.get(name) != trace]
        self._before = {} if changed else before
        if changed and type(run.task).state_dict is Task.state_dict:
            run.say(
                f"note: {type(run.task).__qualname__} changes {listed(changed)} while it trains, "
                "which no checkpoint holds: a resumed run would train otherwise; return the values "
                "in Task.state_dict, and set them in Task.load_state_dict"
            )
