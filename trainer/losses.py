"""The loss of a training step, checked and weighted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from .data.batches import by_part
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

    def add(self, loss: Tensor, share: float, sums: Mapping[str, Any], *, counts: bool) -> None:
        """Add a micro-batch.

        Args:
            loss, share, sums: as ``share_of`` gives them.
            counts: False for a padding batch.
        """
        # A separate tensor, because a compiled step on a GPU may write over the loss.
        part = loss.detach() * share
        self.shares.append(part)
        if counts:
            self._counted.append(part)
        if sums:
            self.reported.add(sums, counts=counts)

    def total(self, device: torch.device) -> Tensor:
        """Return this rank's part of the global mean. Summed over ranks it is the loss."""
        if not self._counted:
            return torch.zeros((), device=device)
        return reduce(torch.add, self._counted)


def share_of(
    result: Any, weights: Mapping[str, float], totals: Mapping[str, float]
) -> tuple[Tensor, float, Mapping[str, Any]]:
    """Return the loss of a micro-batch, its share of the global mean, and the sums to report.

    The parts of a loss are added up, each by its own share. Their sum has the share 1.

    Args:
        result: of ``training_step``.
        weights: of the micro-batch, as ``by_part`` gives them.
        totals: the weights of the step over all ranks. A part may have no item in a step.
    """
    if "loss" in weights:
        # The usual case costs nothing more in a step of a small model.
        if type(result) is Tensor and result.ndim == 0 and result.requires_grad:
            return result, weights["loss"] / totals["loss"], {}
        losses, values = split_loss(result)
        sums = weighted(result, weights) if values else {}
        return losses["loss"], weights["loss"] / totals["loss"], sums

    sums = weighted(result, weights)
    parts = [sums[name][0] / (totals[name] or 1.0) for name in weights]
    return reduce(torch.add, parts), 1.0, sums


def split_loss(
    result: Any, names: Collection[str] = ("loss",)
) -> tuple[dict[str, Tensor], Mapping[str, Any]]:
    """Return the parts of the loss of ``training_step``, and the values reported beside the loss.

    Args:
        names: of the parts that ``Task.weight`` counts, as ``by_part`` gives them.

    Raises:
        DataError: the result is no loss, or nothing could be trained by it.
    """
    is_pair = isinstance(result, tuple) and len(result) == 2
    loss, values = result if is_pair else (result, {})
    losses = by_part(loss, lambda part: part)
    are_counted = losses.keys() == set(names)
    are_numbers = all(hasattr(part, "numel") and part.numel() == 1 for part in losses.values())
    if not are_counted or not are_numbers or not isinstance(values, Mapping):
        shape = f" of shape {tuple(result.shape)}" if hasattr(result, "shape") else ""
        rule = "For a loss of parts Task.weight returns their counts, by the same names"
        parts = [name.removeprefix("loss/") for name in losses]
        counted = "" if are_counted else f" with the names {parts}. {rule}"
        raise DataError(
            "training_step must return the loss, a single number, or (loss, {name: value}). "
            f"It returned a {type(result).__name__}{shape}{counted}"
        )

    if torch.is_grad_enabled() and not any(part.requires_grad for part in losses.values()):
        raise DataError(
            "training_step returned a loss that no parameter has a part in: it was detached, or "
            "computed under no_grad. Return the loss with its graph. The trainer calls backward"
        )
    return {name: part.reshape(()) if part.ndim else part for name, part in losses.items()}, values


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


def weighted(result: Any, weights: Mapping[str, float]) -> dict[str, Any]:
    """Return loss and values of a training step, each single number as ``(sum, weight)``.

    A single number beside the parts of a loss has no known weight, and stays as it is.
    """
    losses, values = split_loss(result, weights)
    found = dict(values)
    for name, value in {**losses, **values}.items():
        weight = weights.get(name, weights.get("loss"))
        is_number = getattr(value, "ndim", 0) == 0 and not isinstance(value, tuple)
        if weight is None or not is_number:
            continue
        # The mean over no items may be NaN. The graph stays, since engines want all gradients.
        known = value if weight else torch.as_tensor(value).nan_to_num()
        found[name] = (known * weight, weight)
    return found
