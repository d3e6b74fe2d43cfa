"""A step that a gradient without a value does not make."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor


def step_if_finite(optimizer: Any, norm: Tensor, on_nan: str) -> None:
    """Step the optimizer, unless the norm of the gradient is not finite: then weights and state
    stay as they are.

    On a GPU fused kernels look at a flag that lies there. Other optimizers would have to wait for
    the device in each
    step: they do so to ``skip`` only. With ``stop`` they step, the run ends before anything of it
        is written.
    """
    if not on_nan:
        optimizer.step()
    elif norm.is_cuda and getattr(optimizer, "_step_supports_amp_scaling", False):
        step_by_flag(optimizer, norm)
    elif (norm.is_cuda and on_nan == "stop") or math.isfinite(norm.item()):
        optimizer.step()
    else:
        optimizer._opt_called = (
            True  # else torch warns that the schedule moves before the optimizer
        )


def step_by_flag(optimizer: Any, norm: Tensor) -> None:
    """Step a fused optimizer, which reads on its device whether the norm is finite."""
    optimizer.grad_scale, optimizer.found_inf = None, norm.isfinite().logical_not().float()
    optimizer.step()
