"""Hooks: everything that looks at a training from outside of its loop.

Stopping, logging, evaluation, checks, files, trackers and checkpoints are hooks, and so is what
users add. ``row.py`` puts them into one row, in the order in which they are called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .run import Run

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from .data.batches import Window
    from .metrics import WeightedSums
    from .strategies.base import StepResult


@dataclass(kw_only=True)
class StepInfo:
    """One optimizer step, as hooks see it.

    Args:
        step: optimizer steps since the start, this one included; one that the fp16 scaler skipped
            counts.
        epoch: epochs done, as a fraction.
        samples: samples consumed by all ranks.
        loss: this rank's part of the global mean, on the device; summed over ranks it is the loss.
        grad_norm: global norm before clipping, on the device.
        update: what the optimizer step gave; None where an evaluation is made up, and no step was
            made.
        shares: what each of this rank's micro-batches added to ``loss``, on the device.
        reported: what ``training_step`` returned beside the loss, as sums of this rank.
        is_last: whether training ends with this step. Set by ``Stopping``.
        metrics: plain numbers, on steps that are logged: loss, lr, grad_norm, samples_per_second,
            ... Set by ``Log``.
        evaluation: ``eval/...`` numbers, on steps that were evaluated. Set by ``Evaluation``.
    """

    step: int
    epoch: float
    samples: int
    loss: Tensor
    grad_norm: Tensor
    update: StepResult | None = None
    shares: Sequence[Tensor] = ()
    reported: WeightedSums | None = None
    is_last: bool = False
    metrics: dict[str, float] | None = None
    evaluation: dict[str, float] | None = None


class Callback:
    """A hook of a run. Subclass it and override the methods that you need.

    Every method runs on every rank; one that writes guards itself with ``run.is_main``. What is not
    overridden is not called. Yours come after the built-in ones; only the one that saves comes
    after them, so that their state is in the checkpoint.

    Attributes:
        every: ``on_step`` is called at every ``every``-th optimizer step, and at the last.
    """

    every: int = 1

    def on_launch(self, run: Run) -> None:
        """Look at a run whose ranks are connected, before anything is read, built or written."""

    def on_data(self, run: Run) -> None:
        """Look at the data that the task built (``run.data``), before its model is built."""

    def on_model(self, run: Run, model: nn.Module) -> None:
        """Look at the model as the task built it, before a strategy wraps or shards it."""

    def on_optimizer(self, run: Run, optimizer: Optimizer) -> None:
        """Look at the fresh optimizer, before a strategy wraps or shards the model."""

    def on_start(self, run: Run) -> None:
        """Look at a run that is ready, before its first step; it may have been resumed."""

    def on_window(self, run: Run, window: Window) -> None:
        """Look at the micro-batches of a step, which are fetched, before the first forward pass."""

    def before_update(self, run: Run) -> None:
        """Look at a step whose gradients are all there, before they are clipped and applied."""

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Look at one optimizer step. ``run.stop()`` ends training; any rank may ask alone."""

    def on_save(self, run: Run) -> None:
        """Look at a run whose checkpoint is about to be written."""

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        """Look at ``summary`` (of summary.json) after the last step and the export.

        Not called when training fails.
        """

    def summary(self) -> Mapping[str, Any]:
        """Return what summary.json holds of it, the same on every rank."""
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        """Return what a checkpoint keeps of it: JSON with tensors in it, the same on every rank.

        Asked for once before the first step as well, so that what cannot be saved is known then.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` returned. Called before training continues."""

    def pinned_steps(self) -> Collection[int]:
        """Return the steps whose checkpoints must not be deleted."""
        return ()


class Hooks:
    """A row of hooks, called in order; a hook is called only for the events that it overrides.

    Args:
        row: the hooks in the order of their calls.
    """

    def __init__(self, row: Sequence[Callback]) -> None:
        self.row = list(row)
        self._launch = self._that_override("on_launch")
        self._data = self._that_override("on_data")
        self._model = self._that_override("on_model")
        self._optimizer = self._that_override("on_optimizer")
        self._start = self._that_override("on_start")
        self._window = self._that_override("on_window")
        self._update = self._that_override("before_update")
        self._step = self._that_override("on_step")
        self._save = self._that_override("on_save")
        self._end = self._that_override("on_end")

    def _that_override(self, event: str) -> list[Callback]:
        """Return the hooks that override an event: the others would only cost a call a step."""
        empty: Callable[..., Any] = getattr(Callback, event)
        return [hook for hook in self.row if getattr(type(hook), event) is not empty]

    def after(self, hook: Callback) -> Hooks:
        """Return the part of the row behind one of its hooks."""
        return Hooks(self.row[self.row.index(hook) + 1 :])

    def on_launch(self, run: Run) -> None:
        for hook in self._launch:
            hook.on_launch(run)

    def on_data(self, run: Run) -> None:
        for hook in self._data:
            hook.on_data(run)

    def on_model(self, run: Run, model: nn.Module) -> None:
        for hook in self._model:
            hook.on_model(run, model)

    def on_optimizer(self, run: Run, optimizer: Optimizer) -> None:
        for hook in self._optimizer:
            hook.on_optimizer(run, optimizer)

    def on_start(self, run: Run) -> None:
        for hook in self._start:
            hook.on_start(run)

    def on_window(self, run: Run, window: Window) -> None:
        for hook in self._window:
            hook.on_window(run, window)

    def before_update(self, run: Run) -> None:
        for hook in self._update:
            hook.before_update(run)

    def on_step(self, run: Run, info: StepInfo) -> None:
        step = info.step
        for hook in self._step:
            # An earlier hook of the row decides whether the step is the last one.
            if hook.every == 1 or info.is_last or step % hook.every == 0:
                hook.on_step(run, info)

    def on_save(self, run: Run) -> None:
        for hook in self._save:
            hook.on_save(run)

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        for hook in self._end:
            hook.on_end(run, summary)

    def summary(self) -> dict[str, Any]:
        """Return what the hooks add to summary.json."""
        found: dict[str, Any] = {}
        for hook in self.row:
            found |= hook.summary()
        return found
