"""The private attributes of DeepSpeed by which gradients go around it. Last seen in 0.19.8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .deepspeed_engine import REDUCE_METHODS


def take_gradients(zero: Any, stage: int, take: Callable[[Any], object]) -> None:
    """Give each gradient to a function instead of the engine, which then exchanges nothing.

    ``reduce_ipg_grads`` exchanges buckets at the end of a backward pass of stages 1 and 2.
    """
    setattr(zero, REDUCE_METHODS[stage], lambda parameter, *_: take(parameter))
    if stage < 3:
        zero.reduce_ipg_grads = lambda *_, **__: None


def new_gradients(zero: Any, stage: int) -> dict[Tensor, Tensor]:
    """Give the engine's next step gradients of zero, which are returned by flat group.

    ``averaged_gradients`` has a list of tensors for each group, which the engine joins.
    """
    groups = (
        zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
    )
    flat = {group: torch.zeros_like(group) for group in groups}
    for number, group in enumerate(groups):
        zero.averaged_gradients[number] = [flat[group]]
    return flat
