"""Reading and editing parameters outside of the optimizer: whole, and in full precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..errors import LaunchError
from ..private.torch import own_parameters
from ..text import listed
from .tensors import unwrapped

if TYPE_CHECKING:
    from .base import Strategy


@contextmanager
def whole_parameters(strategy: Strategy, names: Sequence[str]) -> Iterator[nn.Module]:
    """Put whole parameters in full precision into the model, and keep the changes of the block.

    Collective: enter and leave the block on every rank. Yields the model without wrappers, and
    raises ``LaunchError`` if the model has no parameter of these names.

    Args:
        names: of parameters, or of modules with parameters. Empty: all parameters.
    """
    prefixes = tuple(f"{name}." for name in names) or ("",)
    wholes: dict[Any, tuple[str, nn.Parameter]] = {}  # by the engine's parameter
    for name, parameter in strategy.parameters(trainable=None):
        if f"{name}.".startswith(prefixes):
            whole = strategy.full_tensor(parameter)
            if whole.dtype in (torch.bfloat16, torch.float16):  # frozen: in the engine's precision
                whole = whole.float()
            wholes[parameter] = name, nn.Parameter(whole, parameter.requires_grad)
    if not wholes:
        raise LaunchError(f"the model has no parameters called {listed(names)}")

    # DeepSpeed's own kind of dict would gather each parameter in items().
    places = [
        (own, key, engines)
        for own in map(own_parameters, strategy.model.modules())
        for key, engines in dict.items(own)
        if engines in wholes
    ]
    for own, key, engines in places:
        _, own[key] = wholes[engines]
    try:
        with torch.no_grad():
            yield unwrapped(strategy.model)
    finally:
        for own, key, engines in places:
            own[key] = engines
    strategy.fill((name, whole.data) for name, whole in wholes.values())
