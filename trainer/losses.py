"""The loss of a training step, checked and weighted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from .errors import DataError
from .metrics import WeightedSums
from .private.torch import leaves_of
from .strategies import Strategy
from .strategies.tensors import graph_of


class StepLosses:
    """The losses of a step on this rank, each with a share of the global mean.

    Args:
        totals: returns the weights of the step over all ranks, by the part of the loss.
        strategy: of the run, which averages or sums gradients over the ranks.

    Attributes:
        shares: the part of each micro-batch in the global loss, on the device.
        reported: the parts of a loss, and the values that ``training_step`` returned beside it.
            None if there are none.
    """

    def __init__(self, totals: Callable[[], Mapping[str, float]], strategy: Strategy) -> None:
        self.totals = totals
        self.is_exact = strategy.sums_exactly
        self.ranks = 1 if self.is_exact else strategy.plan.world_size  # of the average
        self.shares: list[Tensor] = []
        self.reported: WeightedSums | None = None

    def add(self, result: Any, weights: Mapping[str, float]) -> Tensor:
        """Add a micro-batch, and return the loss whose gradient the ranks average.

        Args:
            result: of ``training_step``.
            weights: of the micro-batch. All are 0 for a padding batch.
        """
        parts, values = split_loss(result, weights)
        to_train, shares = [], []
        for name, total in self.totals().items():
            share = weights[name] / (total or 1.0)  # a part may have no item in a step
            factor = share * self.ranks
            # A product with 1 would cost a kernel in each of both passes.
            to_train.append(parts[name] if factor == 1.0 else parts[name] * factor)
            # A separate tensor, because a compiled step may write over the loss.
            shares.append(parts[name].detach() * share)

        of_micro_batch = reduce(torch.add, shares)
        self.shares.append(of_micro_batch.double() if self.is_exact else of_micro_batch)
        if values or "" not in parts:
            self.reported = self.reported or WeightedSums()
            self.reported.add(weighted(result, weights), counts=any(weights.values()))
        return reduce(torch.add, to_train)

    @property
    def total(self) -> Tensor:
        """Return this rank's part of the global mean. Summed over ranks it is the loss."""
        return reduce(torch.add, self.shares)


def split_loss(
    result: Any, weights: Mapping[str, float]
) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """Return the parts of the loss of ``training_step``, and the values reported beside the loss.

    Args:
        weights: as ``by_part`` gives them. The mean over no items may be NaN, and becomes a number.
            Its graph stays, since engines want all gradients.

    Raises:
        DataError: the result is no loss, or nothing could be trained by it.
    """
    is_pair = isinstance(result, tuple) and len(result) == 2
    loss, values = result if is_pair else (result, {})
    parts = loss if isinstance(loss, Mapping) else {"": loss}
    are_numbers = all(getattr(part, "numel", int)() == 1 for part in parts.values())
    if not are_numbers or parts.keys() != weights.keys() or not isinstance(values, Mapping):
        names = [*filter(None, weights)]
        raise DataError(
            "training_step must return the loss, a single number, or (loss, {name: value}). For a "
            "loss of parts {name: number} Task.weight returns their counts, by the same names. "
            f"It returned a value of {getattr(result, 'shape', type(result))}, and Task.weight "
            f"counts {names or 'no parts'}"
        )

    numbers = {}
    for name, part in parts.items():
        known = part if weights[name] else part.nan_to_num()
        numbers[name] = known.reshape(()) if known.ndim else known  # a view takes 3 us
    return numbers, values


@contextmanager
def without_backward() -> Iterator[None]:
    """Surround ``training_step``, which must not give parameters gradients.

    Raises:
        DataError: code in the block calls ``backward``.
    """

    def backward(tensors: Any, *args: Any, **named: Any) -> None:
        if any(map(_depends, leaves_of(tensors))):
            raise DataError(
                "training_step must not call backward, which the trainer does: gradients that are "
                "there before have another weight on each layout. Return the sum of all losses"
            )
        own(tensors, *args, **named)

    own, torch.autograd.backward = torch.autograd.backward, backward
    try:
        yield
    finally:
        torch.autograd.backward = own


def refuse_independent(loss: Tensor) -> None:
    """Raise ``DataError`` if a loss has a gradient, but depends on no parameter."""
    if not _depends(loss):
        raise DataError(
            "training_step returned a loss that no parameter has a part in. Compute the loss from "
            "the model's outputs, with operations of tensors (not .item(), .detach(), argmax or "
            "torch.tensor). requires_grad=True does not help"
        )


def _depends(loss: Tensor) -> bool:
    """Return whether a parameter has a part in a loss, or a function that may hide a parameter."""
    known = nn.Parameter | BackwardCFunction
    return isinstance(loss, known) or any(
        isinstance(getattr(node, "variable", node), known) for node in graph_of(loss)
    )


@contextmanager
def explained(known: Mapping[str, str]) -> Iterator[None]:
    """Surround code whose errors of an engine name the mistake of a task.

    Args:
        known: lines for the user, by a part of an error's text.

    Raises:
        DataError: an error of the code has one of these texts.
    """
    try:
        yield
    except Exception as error:
        for part, line in known.items():
            if part in str(error):
                raise DataError(line) from None
        raise


def weighted(result: Any, weights: Mapping[str, float]) -> dict[str, Any]:
    """Return loss and values of a training step, each single number as ``(sum, weight)``.

    A single number beside the parts of a loss has no known weight, and stays as it is.
    """
    parts, values = split_loss(result, weights)
    found: dict[str, Any] = {
        f"loss/{name}".rstrip("/"): (part * weights[name], weights[name])
        for name, part in parts.items()
    }
    for name, value in values.items():
        is_number = getattr(value, "ndim", 0) == 0 and not isinstance(value, tuple)
        counts = is_number and "" in weights
        found[name] = (value * weights[""], weights[""]) if counts else value
    return found
