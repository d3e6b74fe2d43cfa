"""The private attributes of DeepSpeed by which gradients go around it. Last seen in 0.19.8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .deepspeed_engine import REDUCE_METHODS, stepped_groups


def exchange_nothing(zero: Any, stage: int) -> None:
    """Let the engine take and exchange no gradient, and not clip by its own norm.

    ``reduce_ipg_grads`` exchanges buckets at the end of a backward pass of stages 1 and 2.
    """
    setattr(zero, REDUCE_METHODS[stage], lambda *_: None)
    zero.reduce_ipg_grads = lambda *_, **__: None
    zero.clip_grad = 0.0


def new_gradients(zero: Any) -> dict[Any, Tensor]:
    """Give the engine's next step gradients of zero, which are returned by flat group.

    ``averaged_gradients`` has a list of tensors for each group, which the engine joins.
    """
    flat: dict[Any, Tensor] = {group: torch.zeros_like(group) for group in stepped_groups(zero)}
    for number, gradient in enumerate(flat.values()):
        zero.averaged_gradients[number] = [gradient]
    return flat
