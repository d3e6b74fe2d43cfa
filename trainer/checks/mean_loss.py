"""Losses that are sums over the micro-batch, which train another model on another layout."""

from __future__ import annotations

import copy
from typing import Any

import torch
from accelerate.utils import recursively_apply
from torch import Tensor

from ..data.batches import Window
from ..errors import LaunchError
from ..hooks import Callback
from ..losses import split_loss
from ..run import Run
from ..strategies.tensors import local
from ..task import batch_size


class MeanLoss(Callback):
    """Refuses a loss that triples if its batch is a row three times instead of once.

    A mean stays as it is. The first row of the first micro-batch must show a sum on every rank, and
    beside a second loss of the row, since noise and counters of a task change losses too. The model
    is in evaluation mode, and the run stays as it was. A batch that has not a row for each example,
    or a task that fails in evaluation mode, is passed over.
    """

    def __init__(self) -> None:
        self._is_done = False

    def on_window(self, run: Run, window: Window) -> None:
        """Raise ``LaunchError`` if the loss is a sum. Collective, once."""
        if self._is_done:
            return
        self._is_done = True
        batches = _rows(window.micros[0].batch)
        if not all(run.agreement.gather(len(batches))):  # ranks compute equally often
            return

        with run.meter.paused("evaluation"):
            once, thrice, again = _losses(run, batches)
        is_sum = all(abs(thrice - 3 * one) < 0.5 * abs(thrice - one) for one in (once, again))
        if all(run.agreement.gather(is_sum)):
            raise LaunchError(
                f"{type(run.task).__qualname__}.training_step returns a sum over the micro-batch: "
                "the loss of an example three times is three times its loss. Return the mean over "
                "the items that Task.weight counts, or another layout trains another model "
                "(sanity_evaluation: false skips this trial)"
            )


def _rows(batch: Any) -> list[Any]:
    """Return the first row of a batch once, three times, and once. [] without two rows."""

    def repeated(value: Any, times: int) -> Any:
        if not isinstance(value, Tensor) or not value.ndim:
            return value
        if len(value) != size:
            raise ValueError("not a row for each example")
        return value[[0] * times]

    try:
        size = batch_size(batch)
        counts = (1, 3, 1) if size > 1 else ()
        return [recursively_apply(repeated, batch, n, test_type=lambda value: True) for n in counts]
    except Exception:  # a batch of the task's own kind
        return []


def _losses(run: Run, batches: list[Any]) -> list[float]:
    """Return the losses of some batches. NaN if the task fails on a batch. Collective."""
    task = copy.copy(run.task)
    containers = {k: v for k, v in vars(task).items() if isinstance(v, dict | list | set)}
    vars(task).update({key: copy.copy(value) for key, value in containers.items()})

    # A task may move a teacher's weights. The copies are freed before there are gradients, which
    # take as much memory. Frozen weights beyond that are a base that stays as it is.
    values = [local(parameter.detach()) for parameter in run.model.parameters()]
    trainable = sum(p.numel() for p in run.model.parameters() if p.requires_grad)
    if sum(map(Tensor.numel, values)) > 2 * trainable:
        values = []
    before = [value.clone() for value in values]

    losses = []
    with run.evaluator.unnoticed():
        try:
            for batch in batches:
                loss, _ = split_loss(task.training_step(run.model, run.strategy.to_device(batch)))
                losses.append(float(loss))
        except Exception:
            if losses:  # the row alone was no problem
                raise
            losses = [float("nan")] * len(batches)
        for value, kept in zip(values, before, strict=True):
            if not torch.equal(value, kept):
                value.copy_(kept)
    return losses
