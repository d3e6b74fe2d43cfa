"""Whether the steps of an optimizer on several ranks give the step of a single process.

On parts of parameters LAMB, Adafactor and Prodigy would silently take another norm.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..private.torch import has_step_hooks, leaves_of
from .first_step import fresh_copy, small

if TYPE_CHECKING:
    from torch.optim import Optimizer

# Sizes of the trial's gradients, which grow, and fall in between: some optimizers act above a norm
# only, some if a norm falls, others after a warm-up.
_SCALES = [10.0 ** (number / 2 - 3 - number % 2) for number in range(16)]
# How much a divided step may differ, relative to the largest weight: rounding alone is 1e-6.
_BOUND = 1e-4


def divided_step_problem(optimizer: Optimizer, device: torch.device) -> str:
    """Return why a fresh optimizer cannot step parts of parameters on a device. Empty if it can.

    A copy steps small random tensors. Another copy, as that of a rank of two, steps flat halves.
    """
    if optimizer.state:
        return "the optimizer creates its state before its first step, for whole parameters"
    own = [value for key, value in vars(optimizer).items() if key not in ("param_groups", "state")]
    if any(isinstance(leaf, nn.Parameter) for leaf in leaves_of(own)):
        return "the optimizer keeps parameters outside of its groups, and these are replaced"
    if has_step_hooks(optimizer):
        return "hooks on its step cannot be tried: override step instead"
    try:
        return _trial(optimizer, device)
    except Exception as error:  # (an optimizer's step may want anything)
        return f"a trial step fails ({type(error).__name__}: {error})"


def _trial(optimizer: Optimizer, device: torch.device) -> str:
    """Step small random tensors with a copy, and their halves with another. Compare the results."""
    generator = torch.Generator().manual_seed(0)

    def drawn(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator).to(tensor)

    whole = [[*map(drawn, own)] for own in small(optimizer, device)]
    halves = [[*map(_half, own)] for own in whole]
    copies = [fresh_copy(optimizer, groups) for groups in (whole, halves)]
    for copy in copies:
        for group in copy.param_groups:
            group["lr"] = group["lr"] * 0 + 0.1  # at a small rate a step is lost in rounding

    pairs = [*zip(*map(_stepped, copies), strict=True)]
    for scale in _SCALES:
        for tensor, half in pairs:
            tensor.grad = drawn(tensor) * scale
            half.grad = _half(tensor.grad)
        for copy in copies:
            copy.step()

        expected = torch.cat([_half(tensor) for tensor, _ in pairs])
        found = torch.cat([half for _, half in pairs])
        difference = float((found - expected).abs().max())
        largest = float(expected.abs().max())
        if not difference <= _BOUND * largest:  # also for NaN
            off = f"off by {difference:.2g} of {largest:.2g}"
            return f"a step on them is not that on the whole: in a trial it is {off}"

        for (key, number), (_, other) in zip(*map(_numbers, copies), strict=True):
            if not math.isclose(other, number, rel_tol=_BOUND):
                return f"the optimizer computes {key!r} from whole parameters"
    return ""


def _numbers(optimizer: Optimizer) -> list[tuple[str, float]]:
    """Return the numbers that an optimizer keeps for each group and parameter, with their keys.

    Prodigy's estimate of the distance moves no weight in a few steps.
    """
    return [
        (key, float(value))
        for kept in (
            *optimizer.param_groups,
            *map(optimizer.state.__getitem__, _stepped(optimizer)),
        )
        for key, value in kept.items()
        if isinstance(value, float) or (isinstance(value, Tensor) and value.numel() == 1)
    ]


def _stepped(optimizer: Optimizer) -> list[Tensor]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def _half(tensor: Tensor) -> Tensor:
    """Return a copy of the second half of a flattened tensor, whose blocks begin elsewhere."""
    return tensor.view(-1).tensor_split(2)[1].clone()
