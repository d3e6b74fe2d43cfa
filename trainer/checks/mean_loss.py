"""Losses that are no mean over the items of a micro-batch, which train another model elsewhere."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from accelerate.utils import honor_type

from ..data.batches import Window
from ..errors import LaunchError
from ..hooks import Callback
from ..losses import split_loss
from ..run import Run
from ..strategies.tensors import local

_ROWS = 16  # of a micro-batch at most, since they travel to all ranks
_ROUNDING = {"fp32": 1e-4}  # relative, by the dtype that the model computes in


class MeanLoss(Callback):
    """Refuses a loss that is a sum: of the losses of a batch's halves, and of a row three times.

    A loss that is not the mean of the losses of a batch's halves (over items that ``Task.weight``
    does not count, or with negatives in the batch) is told. All ranks try the batch of rank 0: if
    the task fails with some rows of a batch, all ranks fail at the same place of a divided model.
    The model is in evaluation mode, and the run stays as it was. Passed over: noise in the loss, a
    batch without a row for each sample, a task that fails with these batches.
    """

    _is_done = False

    def on_window(self, run: Run, window: Window) -> None:
        """Raise ``LaunchError`` if the loss is a sum. Collective, once."""
        if self._is_done:
            return
        self._is_done = True
        size = len(run.train_data.parts(run.samples, window.end)[0])
        pickled = run.agreement.of_main(_pickled(window.micros[0].batch, size))
        with run.meter.paused("evaluation"):
            verdict = run.agreement.of_main(_verdict_of_trial(run, pickled))
        if verdict == "a sum":
            raise LaunchError(
                "training_step returns a sum over the micro-batch: the loss of a batch is the sum "
                "of the losses of its halves. Return the mean over the items that Task.weight "
                "counts, or another layout trains another model (sanity_evaluation: false skips "
                "this trial)"
            )
        if verdict:
            run.say(
                "note: the loss of a batch is not the mean of the losses of its halves: the curve "
                "depends on micro_batch_size, and with micro_batch_size: null on the number of "
                "processes (docs/numbers.md)"
            )


def _pickled(batch: Any, size: int) -> bytes:
    """Return rows of a batch twice, both their halves, the first row twice, and thrice in a batch.

    The second time the rows come in the opposite order, which a mean does not notice, and numbers
    that were drawn by place do. No batches if a part of the batch has no row for each of its
    ``size`` samples.
    """
    half = min(size, _ROWS) // 2
    rows = [*range(2 * half)]
    with contextlib.suppress(Exception):  # no second row, or a batch of the task's own kind
        chosen = [rows, rows[::-1], rows[:half], rows[half:], [0], [0], [rows[0]] * 3]
        return pickle.dumps([_cut(batch, size, rows) for rows in chosen])
    return pickle.dumps([])


def _cut(value: Any, size: int, rows: list[int]) -> Any:
    if isinstance(value, Mapping):
        cut = {key: _cut(part, size, rows) for key, part in value.items()}
        return type(value)(cut)  # type: ignore[call-arg]
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        # Inputs and targets may be as many as the samples.
        are_parts = all(getattr(part, "shape", ())[:1] == (size,) for part in value)
        if len(value) != size or are_parts:
            return honor_type(value, (_cut(part, size, rows) for part in value))
        return honor_type(value, map(value.__getitem__, rows))
    if len(value) != size:
        raise ValueError("not a row for each sample")
    return value[rows]


def _verdict_of_trial(run: Run, pickled: bytes) -> str:
    """Compute the losses of some batches, and return the ``_verdict``. Collective.

    Empty if the task fails with a batch: the training will show whether the task is at fault.
    """
    # A task may move a teacher's weights. The copies are freed before there are gradients, which
    # take as much memory. Frozen weights beyond that are a base that stays as it is.
    is_base = run.facts["parameters"] > 2 * run.facts["trainable_parameters"]
    values = [] if is_base else [local(parameter.data) for parameter in run.model.parameters()]
    before = [value.clone() for value in values]

    verdict = ""
    task = copy.copy(run.task)
    with run.evaluator.unnoticed(), contextlib.suppress(Exception):
        own = {k: v.copy() for k, v in vars(task).items() if isinstance(v, dict | list | set)}
        vars(task).update(own)
        tried = []
        for batch in pickle.loads(pickled):
            weights = run.train_data.weigh(batch, 1)
            result = task.training_step(run.model, run.strategy.to_device(batch))
            parts, _ = split_loss(result, weights)
            tried.append([(float(parts[name]), weights[name]) for name in weights])
        rounding = _ROUNDING.get(run.plan.precision["compute"], 2e-2)
        verdict = max(_verdict(of_part, rounding) for of_part in zip(*tried, strict=True))
    for value, kept in zip(values, before, strict=True):
        value.copy_(kept)
    return verdict


def _verdict(tried: Iterable[tuple[float, float]], rounding: float) -> str:
    """Return the kind of a loss: ``a note``, ``a sum``, or a mean (empty).

    Args:
        tried: loss and weight of each batch of ``_pickled``.
        rounding: relative to the losses.
    """
    losses, weights = zip(*tried, strict=True)
    whole, again, first, second, once, once_again, thrice = losses
    mean = (first * weights[2] + second * weights[3]) / (weights[2] + weights[3] or 1)
    noise = abs(whole - again) + abs(once - once_again)
    is_noisy = noise > rounding * (abs(whole) + abs(once))
    near = partial(math.isclose, rel_tol=0.3 if is_noisy else rounding)
    # A loss with negatives in the batch may look like a sum in either way, and not in both.
    if near(whole, first + second) and near(3 * once, thrice) and near(3 * once_again, thrice):
        if not near(whole, mean):
            return "a sum"
    # A loss of both signs may be small beside its parts.
    allowed = rounding * max(map(abs, losses))
    return "a note" if abs(whole - again) < allowed < abs(whole - mean) else ""
