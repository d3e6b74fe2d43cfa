"""Models that are built without values, on the meta device: sharded first and filled afterwards.

So a rank never holds more of the model than the rank's shards and a layer, or a large tensor. The
steps, in order:

1. The task builds the model on the meta device, where tensors have shapes and no memory.
2. ``InitialValues`` sets the values of buffers, which every rank has whole.
3. The strategy shards the model. ``allocate`` gives each parameter memory just before.
4. The shards are filled, from files or by ``InitialValues.draw``.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from ..private.torch import own_parameters, share_gradient_hooks


def allocate(
    modules: Iterable[nn.Module],
    device: torch.device,
    replaced: dict[nn.Parameter, nn.Parameter],
) -> None:
    """Replace the modules' own parameters on the meta device by parameters with memory.

    ``replaced`` gets the new parameters, by those that were replaced. With those of earlier calls
    shared ones stay shared.
    """
    for module in modules:
        for parameter in module.parameters(recurse=False):
            if parameter.is_meta and parameter not in replaced:
                replaced[parameter] = nn.Parameter(
                    torch.empty_like(parameter, device=device), parameter.requires_grad
                )
                share_gradient_hooks(replaced[parameter], parameter)
        put([module], replaced)


def replace_in_optimizer(optimizer: Optimizer, replaced: dict[nn.Parameter, nn.Parameter]) -> None:
    """Make an optimizer step the new parameters instead of the replaced parameters."""
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(parameter, parameter) for parameter in group["params"]]


def put(modules: Iterable[nn.Module], replaced: dict[nn.Parameter, nn.Parameter]) -> None:
    """Put new parameters into modules in place of the modules' own parameters.

    torch forbids a swap of the data if a module has weak references to parameters (nn.LSTM).
    """
    for module in modules:
        for key, parameter in list(own_parameters(module).items()):
            if parameter in replaced:
                # By setattr, with which some modules keep a list of their parameters up to date.
                setattr(module, key, replaced[parameter])
