"""Hooks: everything that looks at a training from outside of the loop.

The hooks of this package and users' callbacks have the same methods. ``row.py`` has the order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .run import Built, Read, Run, Setup

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from .data.batches import Window
    from .metrics import WeightedSums
    from .strategies.base import StepResult


@dataclass(kw_only=True)
class StepInfo:
    """An optimizer step, for hooks.

    Args:
        step: optimizer steps since the start, this step included. A step that the fp16 scaler
            skipped counts.
        epoch: epochs done, as a fraction.
        samples: samples consumed by all ranks.
        began: samples consumed before this step.
        loss: this rank's part of the global mean, on the device. Summed over ranks it is the loss.
        grad_norm: global norm before clipping, on the device.
        update: the outcome of the optimizer step.
        shares: the part of each of this rank's micro-batches in ``loss``, on the device.
        reported: the values that ``training_step`` returned beside the loss, as sums of this rank.
        is_last: whether training ends with this step. Set by ``Stopping``.
        metrics: plain numbers, on steps that are logged: loss, lr, grad_norm, samples_per_second,
            ... Set by ``Log``.
        evaluation: ``eval/...`` numbers, on steps that were evaluated. Set by ``Evaluation``.
    """

    step: int
    epoch: float
    samples: int
    began: int
    loss: Tensor
    grad_norm: Tensor
    update: StepResult
    shares: Sequence[Tensor] = ()
    reported: WeightedSums | None = None
    is_last: bool = False
    metrics: dict[str, float] | None = None
    evaluation: dict[str, float] | None = None


class Callback:
    """A hook of a run. Subclass ``Callback`` and override the methods that you need.

    Every method runs on every rank. A method that writes files asks ``run.is_main`` first. Your
    hooks come after the built-in hooks. Only the hook that saves comes after yours, so that their
    state is in the checkpoint.

    ``on_launch``, ``on_data``, ``on_model`` and ``on_optimizer`` are called while the run is built:
    their ``run`` is the record of the parts that exist by then.

    Attributes:
        every: ``on_step`` is called at every ``every``-th optimizer step, and at the last.
    """

    every: int = 1

    def on_launch(self, run: Setup) -> None:
        """Look at a run whose ranks are connected, before anything is read, built or written.

        ``run`` has ``task``, ``config``, ``plan``, ``strategy``, ``agreement`` and ``note``.
        """

    def on_data(self, run: Read) -> None:
        """Look at the data that the task built (``run.data``), before the model is built.

        ``run`` has also ``name``, ``directory``, ``train_data`` and ``total_steps``.
        """

    def on_model(self, run: Built, model: nn.Module) -> None:
        """Look at the model that the task built, before a strategy wraps or shards the model."""

    def on_optimizer(self, run: Built, optimizer: Optimizer) -> None:
        """Look at the fresh optimizer, before a strategy wraps or shards the model."""

    def on_start(self, run: Run) -> None:
        """Look at a run that is ready, before the first step of a fresh or resumed run."""

    def on_window(self, run: Run, window: Window) -> None:
        """Look at the micro-batches of a step before the first forward pass."""

    def before_update(self, run: Run) -> None:
        """Look at the gradients of a step before they are clipped and applied.

        A change of gradients is lost under ZeRO, whose engine has taken them. An optimizer that
        changes gradients in its step does so under every strategy.
        """

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Look at an optimizer step. ``run.stop()`` ends training. Any rank may ask alone."""

    def on_save(self, run: Run) -> None:
        """Look at a run whose checkpoint is about to be written."""

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        """Look at ``summary`` (of summary.json) after the last step and the export.

        Not called when training fails.
        """

    def summary(self) -> Mapping[str, Any]:
        """Return entries for summary.json, the same on every rank."""
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state that a checkpoint keeps: JSON with tensors, the same on every rank.

        Called once before the first step as well: a state that cannot be saved ends the run there.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a result of ``state_dict``. Called before training continues."""

    def pinned_steps(self) -> Collection[int]:
        """Return the steps whose checkpoints must not be deleted."""
        return ()


EVENTS = (
    "on_launch",
    "on_data",
    "on_model",
    "on_optimizer",
    "on_start",
    "on_window",
    "before_update",
    "on_step",
    "on_save",
    "on_end",
)


class Hooks:
    """A row of hooks in the order of their calls. A hook is called for events that it overrides."""

    def __init__(self, row: Sequence[Callback]) -> None:
        self.row = list(row)
        # To call an empty method would cost time in each step.
        self._of = {
            event: [
                (hook, _called(hook, event))
                for hook in row
                if getattr(type(hook), event) != getattr(Callback, event)
            ]
            for event in EVENTS
        }

    def call(self, event: str, run: Any, *more: Any) -> None:
        """Call the hooks that override an event other than ``on_step``."""
        for _, method in self._of[event]:
            method(run, *more)

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Call the hooks that are due at a step."""
        for hook, method in self._of["on_step"]:
            # Asked for each hook: an earlier hook of the row sets is_last.
            if hook.every == 1 or info.is_last or info.step % hook.every == 0:
                method(run, info)

    def summary(self) -> dict[str, Any]:
        """Return the entries that the hooks add to summary.json."""
        found: dict[str, Any] = {}
        for hook in self.row:
            found |= hook.summary()
        return found


def _called(hook: Callback, event: str) -> Callable[..., object]:
    """Return a method of a hook. A user's method is called in the strategy's context."""
    method: Callable[..., object] = getattr(hook, event)
    if type(hook).__module__.startswith(f"{__package__}."):
        return method

    def in_context(run: Any, *more: Any) -> None:
        with run.strategy.callback_context():
            method(run, *more)

    return in_context
