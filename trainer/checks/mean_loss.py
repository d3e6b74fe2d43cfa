"""Losses that are no mean over the items of a micro-batch, which train another model elsewhere."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import honor_type
from torch import Tensor

from ..data.batches import Window, by_part
from ..errors import LaunchError
from ..hooks import Callback
from ..losses import weighted
from ..run import Run
from ..strategies.tensors import local
from .finite import samples_of

_ROWS = 16  # of a micro-batch at most, since they travel to all ranks


class MeanLoss(Callback):
    """Refuses a loss that is a sum: of the losses of a batch's halves, and of a row three times.

    A loss that is not the mean of the losses of a batch's halves (over items that ``Task.weight``
    does not count, or with negatives in the batch) is told. All ranks try the batch of rank 0: if
    the task fails with some rows of a batch, all ranks fail at the same place of a divided model.
    The model is in evaluation mode, and the run stays as it was. Passed over: noise in the loss, a
    batch without a row for each sample, a task that fails with these batches.
    """

    def __init__(self) -> None:
        self._is_done = False

    def on_window(self, run: Run, window: Window) -> None:
        """Raise ``LaunchError`` if the loss is a sum. Collective, once."""
        if self._is_done:
            return
        self._is_done = True
        [samples, *_] = samples_of(run.train_data, run.samples, window.end)
        pickled = run.agreement.of_main(_pickled(window.micros[0].batch, len(samples)))
        if not pickled:
            return

        with run.meter.paused("evaluation"):
            tried = _losses(run, pickled)
        rounding = 1e-4 if run.plan.precision["compute"] == "fp32" else 2e-2
        verdict = run.agreement.of_main(_verdict(tried, rounding) if tried else "")
        if verdict == "a sum":
            raise LaunchError(
                f"{type(run.task).__qualname__}.training_step returns a sum over the micro-batch: "
                "the loss of a batch is the sum of the losses of its halves. Return the mean over "
                "the items that Task.weight counts, or another layout trains another model "
                "(sanity_evaluation: false skips this trial)"
            )
        if verdict:
            run.say(
                "note: the loss of a batch is not the mean of the losses of its halves: the curve "
                "depends on micro_batch_size, and with micro_batch_size: null on the number of "
                "processes (docs/numbers.md)"
            )


def _pickled(batch: Any, size: int) -> bytes:
    """Return rows of a batch twice, both their halves, the first row twice, and thrice in a batch.

    Empty without two rows, or if a part of the batch has no row for each of its ``size`` samples.
    """
    half = min(size, _ROWS) // 2
    if not half:
        return b""
    both = range(2 * half)
    try:
        chosen = [both, both, both[:half], both[half:], [0], [0], [0] * 3]
        return pickle.dumps([_cut(batch, size, rows) for rows in chosen])
    except Exception:  # a batch of the task's own kind
        return b""


def _cut(value: Any, size: int, rows: Sequence[int]) -> Any:
    if isinstance(value, Mapping):
        cut = {key: _cut(part, size, rows) for key, part in value.items()}
        return type(value)(cut)  # type: ignore[call-arg]
    if isinstance(value, list | tuple):
        # Inputs and targets may be as many as the samples.
        are_parts = all(getattr(part, "shape", ())[:1] == (size,) for part in value)
        if len(value) != size or are_parts:
            return honor_type(value, (_cut(part, size, rows) for part in value))
    if value is None or isinstance(value, str):
        return value
    if len(value) != size:
        raise ValueError("not a row for each sample")
    if isinstance(value, list | tuple):
        return type(value)(value[row] for row in rows)
    return value[[*rows]]


def _verdict(tried: list[dict[str, tuple[float, ...]]], rounding: float) -> str:
    """Return the kind of a loss: ``a sum``, ``another`` than a mean, or a mean (empty).

    Args:
        tried: sums and weights of ``_losses``, by the part of the loss.
        rounding: relative to the losses.
    """
    verdict = ""
    for name in tried[0]:
        sums, weights = zip(*(losses[name] for losses in tried), strict=True)
        means = map(operator.truediv, sums, [weight or 1 for weight in weights])
        whole, again, first, second, once, once_again, thrice = means
        mean = (sums[2] + sums[3]) / (weights[2] + weights[3] or 1)
        noise = abs(whole - again) + abs(once - once_again)
        allowed = 0.3 if noise > rounding * (abs(whole) + abs(once)) else rounding
        # A loss with negatives in the batch may look like a sum in either way, and not in both.
        is_sum = abs(whole - first - second) <= allowed * abs(whole) < abs(whole - mean)
        if is_sum and all(
            abs(thrice - 3 * row) <= allowed * abs(thrice) for row in (once, once_again)
        ):
            return "a sum"
        if abs(whole - again) < rounding * (abs(whole) + abs(mean)) < abs(whole - mean):
            verdict = "another"
    return verdict


def _losses(run: Run, pickled: bytes) -> list[dict[str, tuple[float, ...]]]:
    """Return sums and weights of the losses of some batches, by the part of the loss. Collective.

    Empty if the task fails with a batch: the training will show whether the task is at fault.
    """
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

    weight_of = run.train_data.weight_of or (lambda batch: 1.0)
    losses = []
    with run.evaluator.unnoticed():
        try:
            for batch in pickle.loads(pickled):
                weights = by_part(weight_of(batch))
                result = task.training_step(run.model, run.strategy.to_device(batch))
                sums = weighted(result, weights)
                losses.append({name: tuple(map(float, sums[name])) for name in weights})
        except Exception:
            losses = []
        for value, kept in zip(values, before, strict=True):
            if not torch.equal(value, kept):
                value.copy_(kept)
    return losses
