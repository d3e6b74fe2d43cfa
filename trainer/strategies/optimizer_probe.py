"""Whether an optimizer's step on parts of parameters gives the parts of a step on the whole.

FSDP2 and ZeRO need such an optimizer. LAMB and Adafactor take the norm of each parameter, for
example, and would silently take another norm on a slice.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .first_step import fresh_copy, small

if TYPE_CHECKING:
    from torch.optim import Optimizer

# Sizes of the trial's gradients, from small to large: some optimizers act above a norm only, others
# after a warm-up.
_SCALES = [10.0 ** (number / 2 - 3) for number in range(16)]
# How much a divided step may differ, relative to the largest weight: rounding alone is 1e-6.
_BOUND = 1e-4


def divided_step_problem(optimizer: Optimizer, device: torch.device) -> str:
    """Return why an optimizer cannot step parts of parameters. Empty if it can.

    A copy of the optimizer steps small random tensors, another copy steps flat halves.

    Args:
        optimizer: fresh. Stays unchanged.
        device: on which the optimizer will step.
    """
    if optimizer.state:
        return "the optimizer creates its state before its first step, for whole parameters"
    try:
        return _trial(optimizer, device)
    except Exception as error:  # (an optimizer's step may want anything)
        return f"a trial step fails ({type(error).__name__}: {error})"


def _trial(optimizer: Optimizer, device: torch.device) -> str:
    """Step small random tensors and flat halves with two copies, and compare the results."""
    generator = torch.Generator().manual_seed(0)

    def drawn(tensor: Tensor) -> Tensor:
        return torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator).to(tensor)

    whole = [
        [drawn(tensor) for tensor in small(group["params"], device)]
        for group in optimizer.param_groups
    ]
    divided = [[half for tensor in group for half in _halves(tensor)] for group in whole]
    copies = fresh_copy(optimizer, whole), fresh_copy(optimizer, divided)
    for copy in copies:
        for group in copy.param_groups:
            group["lr"] = group["lr"] * 0 + 0.1  # at a small rate a step is lost in rounding

    tensors = list(chain.from_iterable(whole))
    halves = list(chain.from_iterable(divided))
    for scale in _SCALES:
        gradients = [drawn(tensor) * scale for tensor in tensors]
        of_halves = chain.from_iterable(map(_halves, gradients))
        for tensor, gradient in zip((*tensors, *halves), (*gradients, *of_halves), strict=True):
            tensor.grad = gradient
        for copy in copies:
            copy.step()

        expected = torch.cat([tensor.view(-1) for tensor in tensors])
        difference = float((torch.cat(halves) - expected).abs().max())
        largest = float(expected.abs().max())
        if not difference <= _BOUND * largest:  # also for NaN
            off = f"off by {difference:.2g} of {largest:.2g}"
            return f"a step on them is not that on the whole: in a trial it is {off}"
    return ""


def _halves(tensor: Tensor) -> list[Tensor]:
    """Cut a tensor into two flat halves, in copies."""
    return [half.clone() for half in tensor.view(-1).chunk(2)]
