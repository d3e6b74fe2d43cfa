"""The optimizer's step if the gradient may not be finite (``on_nan``), by the global norm.

DeepSpeed's engine and the scaler of fp16 leave such a step out by themselves.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..private.torch import mark_stepped, reads_found_inf


def step_if_finite(optimizer: Any, norm: Tensor, on_nan: str | None) -> bool:
    """Step the optimizer. If the gradient is not finite, leave weights and state unchanged.

    A fused optimizer on a GPU reads the outcome on the device, so that the host does not wait. With
    other optimizers the host would have to wait in each step, and does so for ``skip`` only: with
    ``stop`` they make the step, and the run ends before any result of the step is written.

    Returns whether the host knows that the step was left out. ``norm`` is the global norm of the
    gradient, a scalar, the same on every rank. Without ``on_nan`` the optimizer steps in any case.
    """
    if on_nan and norm.is_cuda and reads_found_inf(optimizer):
        step_by_flag(optimizer, norm)
    elif not on_nan or (norm.is_cuda and on_nan == "stop") or math.isfinite(norm.item()):
        optimizer.step()
    else:
        mark_stepped(optimizer)
        return True
    return False


def step_by_flag(optimizer: Any, norm: Tensor) -> None:
    """Step a fused optimizer, which reads on the device whether the norm is finite."""
    optimizer.grad_scale = None
    optimizer.found_inf = norm.isfinite().logical_not().float()
    optimizer.step()
