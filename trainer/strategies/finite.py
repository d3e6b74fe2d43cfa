"""The optimizer step, left out where the gradient is not finite."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..private.torch import mark_stepped, reads_found_inf


def step_if_finite(optimizer: Any, norm: Tensor, on_nan: str) -> None:
    """Step the optimizer; where the gradient is not finite, leave weights and state unchanged.

    Args:
        optimizer: steps the parameters that ``norm`` belongs to.
        norm: the global norm of the gradient, the same on every rank.
        on_nan: the setting of that name; "" where nobody asked for a check.

    A fused optimizer on a GPU reads the outcome on its device, so that the host does not wait. The
    others would have to wait in each step. They do so for ``skip`` only: with ``stop`` they make
    the step, and the run ends before anything of it is written.
    """
    steps_in_any_case = not on_nan or (norm.is_cuda and on_nan == "stop")
    if on_nan and norm.is_cuda and reads_found_inf(optimizer):
        step_by_flag(optimizer, norm)
    elif steps_in_any_case or math.isfinite(norm.item()):
        optimizer.step()
    else:
        mark_stepped(optimizer)


def step_by_flag(optimizer: Any, norm: Tensor) -> None:
    """Step a fused optimizer, which reads on its device whether the norm is finite."""
    optimizer.grad_scale = None
    optimizer.found_inf = norm.isfinite().logical_not().float()
    optimizer.step()
