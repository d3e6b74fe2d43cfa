"""Whether an optimizer's step on parts of parameters gives the parts of a step on the whole.

FSDP2 and ZeRO need it. LAMB and Adafactor take the norm of each parameter, for example. On a slice
they would silently take another norm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, optim

from ..errors import Origin, Problem
from .first_step import fresh_copy, small

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..plan import Plan

# Optimizers of torch that compute element by element.
_ELEMENTWISE = (
    optim.Adadelta,
    optim.Adam,
    optim.Adamax,
    optim.AdamW,
    optim.ASGD,
    optim.NAdam,
    optim.RAdam,
    optim.RMSprop,
    optim.Rprop,
    optim.SGD,
)

# Sizes of the trial's gradients, from small to large: some optimizers act above a norm only, others
# after a warm-up.
_SCALES = [10.0 ** (number / 2 - 3) for number in range(16)]
# How much a divided step may differ, relative to the largest weight: rounding alone is 1e-6.
_BOUND = 1e-4


def divided_step_problem(optimizer: Optimizer, device: torch.device) -> str:
    """Return why an optimizer cannot step parts of parameters. Empty if it can.

    An optimizer that is not known to compute element by element is tried: one copy steps small
    random tensors, another copy flat halves of them.

    Args:
        optimizer: fresh. It is not changed.
        device: where it will step.
    """
    if type(optimizer) in _ELEMENTWISE:
        return ""
    if optimizer.state:
        return "the optimizer creates its state before its first step, for whole parameters"

    generator = torch.Generator().manual_seed(0)

    def draw(tensors: list[list[Tensor]], scale: float) -> list[list[Tensor]]:
        """Draw random tensors of the same forms."""
        return [
            [torch.randn(t.shape, dtype=t.dtype, generator=generator).to(t) * scale for t in group]
            for group in tensors
        ]

    whole = draw([small(group["params"], device) for group in optimizer.param_groups], 1.0)
    halves = _halves(whole)
    copies = fresh_copy(optimizer, whole), fresh_copy(optimizer, halves)
    for copy in copies:
        for group in copy.param_groups:
            group["lr"] = group["lr"] * 0 + 0.1  # at a small rate a step is lost in rounding

    for scale in _SCALES:
        gradients = draw(whole, scale)
        try:
            _step(copies[1], _halves(gradients))
            _step(copies[0], gradients)
        except Exception as error:  # (an optimizer's step may want anything)
            return f"a trial step fails ({type(error).__name__}: {error})"

        expected = _flat(_halves(whole))
        difference = float((_flat(halves) - expected).abs().max())
        largest = float(expected.abs().max())
        if not difference <= _BOUND * largest:  # also if it is NaN
            off = f"off by {difference:.2g} of {largest:.2g}"
            return f"a step on them is not that on the whole: in a trial it is {off}"
    return ""


def _step(optimizer: Any, gradients: list[list[Tensor]]) -> None:
    for group, of_group in zip(optimizer.param_groups, gradients, strict=True):
        for tensor, gradient in zip(group["params"], of_group, strict=True):
            tensor.grad = gradient
    optimizer.step()


def _halves(groups: list[list[Tensor]]) -> list[list[Tensor]]:
    """Cut each tensor into two flat halves, in copies."""
    return [[half.clone() for t in group for half in t.view(-1).chunk(2)] for group in groups]


def _flat(groups: list[list[Tensor]]) -> Tensor:
    return torch.cat([tensor.view(-1) for group in groups for tensor in group])


def refusal(problem: str, optimizer: Optimizer, plan: Plan, built_by: str | None) -> Problem:
    """Return the problem of an optimizer that cannot step parts of parameters.

    Args:
        problem: what ``Strategy.optimizer_problem`` returned.
        optimizer: the optimizer.
        plan: names the optimizer if the config does.
        built_by: the method that built the optimizer. None if the config names it.
    """
    in_config = plan.origins.get("optimizer", Origin("TrainConfig")).named("optimizer")
    origin = Origin(built_by) if built_by else in_config
    kind = type(optimizer).__qualname__ if built_by else plan.optimizer
    rule = f"{problem}; run it on replicas (DDP) or in one process, or take another optimizer"
    return Problem(origin=origin, value=kind, rule=rule)
