"""Borders at the inputs of modules, so that gradients add up in the same order everywhere.

A tensor with three uses gets the gradient (a + b) + c. FSDP2 and ZeRO-3 put a node of autograd at
the inputs of modules, at which the uses within a module add up first: a + (b + c). With such nodes
at every module under every strategy the order is the same.
"""

from __future__ import annotations

from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

from ..private.torch import flattened, unflattened

# They use their input once, and never return it: a border would make no difference, and takes some
# 20 us. Other kinds of this sort are called less often.
_USE_ONCE = (nn.Linear, nn.Conv2d, nn.Embedding, nn.LayerNorm, nn.ReLU)


def add_borders(model: nn.Module) -> None:
    """Put a border at the inputs of each module, before the nodes of an engine.

    ZeRO-3 has a node for each input, which autograd visits from the last to the first.
    """
    for module in model.modules():
        if type(module) not in _USE_ONCE:
            module.register_forward_pre_hook(_enter, prepend=True, with_kwargs=True)


class _Border(torch.autograd.Function):
    """An identity. The gradients of all inputs pass at once, as through FSDP2's node."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        inside = [tensor.view_as(tensor) for tensor in tensors]
        is_constant = [not tensor.requires_grad for tensor in tensors]
        ctx.mark_non_differentiable(*compress(inside, is_constant))
        return tuple(inside)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients


def _enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Return the inputs of a module, each tensor as another object, as under ZeRO-3.

    ``nn.MultiheadAttention`` computes otherwise if query and key are the same object.
    """
    leaves, form = flattened((args, kwargs))
    places = [
        place
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided
    ]
    behind: Any = _Border.apply(*(leaves[place] for place in places))  # type: ignore[no-untyped-call]
    for place, tensor in zip(places, behind, strict=True):
        leaves[place] = tensor
    return unflattened(leaves, form)
