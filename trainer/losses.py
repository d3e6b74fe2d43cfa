"""The loss of a training step, checked and weighted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from .errors import DataError
from .metrics import WeightedSums


class StepLosses:
    """The losses of a step on this rank, each with a share of the global mean.

    Attributes:
        shares: the part of each micro-batch in the global loss, on the device.
        reported: the values that ``training_step`` returned beside the loss.
    """

    def __init__(self) -> None:
        self.shares: list[Tensor] = []
        self.reported = WeightedSums()
        self._counted: list[Tensor] = []

    def add(self, loss: Tensor, share: float, values: Mapping[str, Any], weight: float) -> None:
        """Add a micro-batch.

        Args:
            loss: a mean over the micro-batch.
            share: the micro-batch's part of the weight of the step, over all ranks.
            values: reported beside the loss.
            weight: of the micro-batch. 0 for a padding batch, which does not count.
        """
        # A separate tensor, because a compiled step on a GPU may write over the loss.
        part = loss.detach() * share
        self.shares.append(part)
        if weight:
            self._counted.append(part)
        if values:
            self.reported.add(weighted((loss, values), weight), counts=weight != 0)

    def total(self, device: torch.device) -> Tensor:
        """Return this rank's part of the global mean. Summed over ranks it is the loss."""
        if not self._counted:
            return torch.zeros((), device=device)
        return reduce(torch.add, self._counted)


def split_loss(result: Any) -> tuple[Tensor, Mapping[str, Any]]:
    """Return the loss of ``training_step`` as a scalar, and the values reported beside it.

    Raises:
        DataError: the result is no loss, or nothing could be trained by it.
    """
    is_pair = isinstance(result, tuple) and len(result) == 2
    loss, values = result if is_pair else (result, {})
    size = loss.numel() if hasattr(loss, "numel") else 0
    if size != 1 or not isinstance(values, Mapping):
        shape = f" of shape {tuple(result.shape)}" if hasattr(result, "shape") else ""
        raise DataError(
            "training_step must return the loss, a single number, or (loss, {name: value}). "
            f"It returned a {type(result).__name__}{shape}"
        )

    if torch.is_grad_enabled() and not loss.requires_grad:
        raise DataError(
            "training_step returned a loss that no parameter has a part in: it was detached, or "
            "computed under no_grad. Return the loss with its graph. The trainer calls backward"
        )
    return (loss if loss.ndim == 0 else loss.reshape(())), values


def refuse_independent(loss: Tensor) -> None:
    """Raise ``DataError`` if a loss has a gradient, but depends on no parameter.

    The graph is walked until the first parameter is met, or a custom function, which may hide a
    parameter.
    """
    if isinstance(loss, nn.Parameter):
        return

    to_visit: list[Any] = [loss.grad_fn]
    seen: set[Any] = {None}
    while to_visit:
        node = to_visit.pop()
        if node in seen:
            continue
        seen.add(node)
        is_parameter = isinstance(getattr(node, "variable", None), nn.Parameter)
        if is_parameter or isinstance(node, BackwardCFunction):
            return
        to_visit += [behind for behind, _ in node.next_functions]

    raise DataError(
        "training_step returned a loss that no parameter has a part in. Compute the loss from the "
        "model's outputs, with operations of tensors (not .item(), .detach(), argmax or "
        "torch.tensor). requires_grad=True does not help"
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


def weighted(result: Any, weight: float) -> dict[str, Any]:
    """Return loss and values of a training step, each single number as ``(sum, weight)``."""
    loss, values = split_loss(result)
    found: dict[str, Any] = {}
    for name, value in {"loss": loss, **values}.items():
        is_number = getattr(value, "ndim", 0) == 0 and not isinstance(value, tuple)
        found[name] = (value * weight, weight) if is_number else value
    return found
