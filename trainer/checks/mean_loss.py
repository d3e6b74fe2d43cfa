"""Losses that are no mean over the items of a micro-batch, which train another model elsewhere."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from math import isclose
from typing import Any

from accelerate.utils import honor_type
from numpy import average

from ..data.batches import Window
from ..errors import LaunchError
from ..hooks import Callback
from ..losses import split_loss
from ..run import Run

_ROWS = 16  # of a micro-batch at most, since they travel to all ranks


class MeanLoss(Callback):
    """Refuses a loss that is a sum: of the losses of a batch's halves, and of a row three times.

    A loss that is not the mean of the losses of a batch's halves (over items that ``Task.weight``
    does not count, or with negatives in the batch) is told. All ranks try the batch of rank 0: if
    the task fails with some rows of a batch, all ranks fail at the same place of a divided model.
    The model is in evaluation mode, and the run stays as it was. Passed over: noise in the loss, a
    batch without a row for each sample, a task that fails with these batches.
    """

    def on_window(self, run: Run, window: Window) -> None:
        """Raise ``LaunchError`` if the loss is a sum. Collective, before the first step."""
        if window.now.step > 1:
            return
        size = len(run.train_data.parts(run.samples, window.end)[0])
        pickled = _pickled(window.micros[0].batch, size)
        with run.meter.paused("evaluation"):
            kinds = run.agreement.of_main(_kinds(run, run.agreement.of_main(pickled)))
        if "a sum" in kinds:
            raise LaunchError(
                "training_step returns a sum over the micro-batch: the loss of a batch is the sum "
                "of the losses of its halves. Return the mean over the items that Task.weight "
                "counts, or another layout trains another model (sanity_evaluation: false skips "
                "this trial)"
            )
        if "no mean" in kinds:
            run.say(
                "note: the loss of a batch is not the mean of the losses of its halves: the curve "
                "depends on micro_batch_size, and with micro_batch_size: null on the number of "
                "processes (docs/numbers.md)"
            )


def _pickled(batch: Any, size: int) -> bytes:
    """Return rows of a batch twice, both their halves, the first row twice, and thrice in a batch.

    The second time the rows come in the opposite order, which a mean does not notice, and numbers
    that were drawn by place do. Empty if a part of the batch has no row for each of ``size``
    samples.
    """
    half = min(size, _ROWS) // 2
    rows = [*range(2 * half)]
    with suppress(Exception):  # no second row, or a batch of the task's own kind
        chosen = rows, rows[::-1], rows[:half], rows[half:], [0], [0], [rows[0]] * 3
        return pickle.dumps([_cut(batch, size, own) for own in chosen])
    return b""


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
    assert len(value) == size, "not a row for each sample"
    return value[rows]


def _kinds(run: Run, pickled: bytes) -> set[str]:
    """Return the kinds of the parts of the loss, by their values for some batches. Collective.

    Empty if the task fails with a batch: the training will show whether the task is at fault.
    """
    # A task may move a teacher's weights. The copies are freed before there are gradients, which
    # take as much memory. Frozen weights beyond that are a base that stays as it is.
    is_base = run.facts["parameters"] > 2 * run.facts["trainable_parameters"]
    before = [] if is_base else [(p.data, p.data.clone()) for p in run.model.parameters()]
    task = copy.copy(run.task)

    kinds: set[str] = set()
    with run.evaluator.unnoticed(), suppress(Exception):
        own = {k: v.copy() for k, v in vars(task).items() if isinstance(v, dict | list | set)}
        vars(task).update(own)
        tried = []
        for batch in pickle.loads(pickled):
            weights = run.train_data.weigh(batch, 1)
            result = task.training_step(run.model, run.strategy.to_device(batch))
            parts, _ = split_loss(result, weights)
            tried.append([(float(parts[name]), weights[name]) for name in parts])
        rounding = 1e-4 if run.plan.precision["compute"] == "fp32" else 2e-2
        kinds = {_kind(rounding, *of_part) for of_part in zip(*tried, strict=True)}
    for values, kept in before:
        values.copy_(kept)
    return kinds


def _kind(rounding: float, *tried: tuple[float, float]) -> str:
    """Return ``a sum``, ``no mean`` or ``a mean``, also if noise may hide that a loss is none.

    Args:
        rounding: relative to the losses.
        tried: loss and weight of each batch of ``_pickled``.
    """
    losses, weights = zip(*tried, strict=True)
    whole, again, first, second, once, once_again, thrice = losses
    mean = average([first, second], weights=weights[2:4])
    allowed = rounding * max(map(abs, losses))  # a loss of both signs may be small beside its parts
    is_noisy = abs(whole - again) + abs(once - once_again) > allowed
    near = partial(isclose, rel_tol=0.3 if is_noisy else rounding)
    if abs(whole - mean) <= allowed:
        return "a mean"
    # A loss with negatives in the batch may look like a sum in either way, and not in both.
    if near(whole, first + second) and near(3 * once, thrice) and near(3 * once_again, thrice):
        return "a sum"
    return "a mean" if is_noisy else "no mean"
