"""Losses that are sums over the micro-batch, which train another model on another layout."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from accelerate.utils import recursively_apply
from torch import Tensor

from ..data.batches import MicroBatch, Window
from ..errors import LaunchError
from ..hooks import Callback
from ..losses import split_loss
from ..run import Run
from ..strategies.tensors import local
from ..task import Task, batch_size


class MeanLoss(Callback):
    """Computes the loss of the first micro-batch and of its parts, and refuses a sum.

    A sum is the sum of the losses of the parts, a mean is their mean. Noise that ``forward`` draws
    changes both a little, and a contrastive loss of four examples looks like a sum in halves. So
    two divisions must show a sum. The model is in evaluation mode, and the run stays as it was. A
    batch that cannot be divided, or a task that fails in evaluation mode, is passed over.
    """

    def __init__(self) -> None:
        self._is_done = False

    def on_window(self, run: Run, window: Window) -> None:
        """Raise ``LaunchError`` if the loss of the first micro-batch is a sum. Collective."""
        if self._is_done:
            return
        self._is_done = True
        with run.meter.paused("evaluation"):
            found = [_is_sum(run, window.micros[0], pieces) for pieces in (2, 4)]
        if all(found):
            raise LaunchError(
                f"{type(run.task).__qualname__}.training_step returns a sum over the micro-batch: "
                "the loss of a batch is the sum of the losses of its two halves. Return the mean "
                "over the items that Task.weight counts, or another layout trains another model "
                "(sanity_evaluation: false skips this trial)"
            )


def _is_sum(run: Run, micro: MicroBatch, pieces: int) -> bool:
    """Return whether a loss is nearer to the sum of the losses of two parts than to their mean.

    Args:
        pieces: the first part is so small a part of the micro-batch.
    """
    parts = _parts(run.task, micro, pieces)
    if not all(run.agreement.gather(bool(parts))):  # ranks compute equally often
        return False
    whole, first, second = _losses(run, [part for part, _ in parts])
    total = first + second
    mean = (first * parts[1][1] + second * parts[2][1]) / micro.weight
    return all(run.agreement.gather(abs(whole - total) < 0.2 * abs(mean - total)))


def _parts(task: Task, micro: MicroBatch, pieces: int) -> list[tuple[Any, float]]:
    """Return copies of a micro-batch, of its first part and of the rest, with their weights.

    Nothing for a micro-batch of padding, or one that cannot be divided.
    """

    def cut(value: Any, part: slice) -> Any:
        if not isinstance(value, Tensor) or not value.ndim:
            return value
        if len(value) != size:
            raise ValueError("not a row for each example")
        return value[part].clone()

    parts = []
    try:
        size = batch_size(micro.batch)
        middle = max(1, size // pieces)
        if micro.weight and size > 1:
            for part in (slice(size), slice(middle), slice(middle, size)):
                batch = recursively_apply(cut, micro.batch, part, test_type=lambda value: True)
                parts.append((batch, float(task.weight(batch))))
    except Exception:  # of a batch of the task's own kind, or of Task.weight
        return []
    return parts


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
        except Exception:  # training itself shows the error
            losses = [math.nan] * len(batches)
        for value, kept in zip(values, before, strict=True):
            if not torch.equal(value, kept):
                value.copy_(kept)
    return losses
