"""Reading and editing parameters outside of the optimizer: whole, and in full precision.

Under FSDP2 and ZeRO a rank holds a part of each parameter, and what the model computes with may be
a copy of lower precision. ``whole_parameters`` puts whole float32 parameters into the model for the
length of a block, and afterwards writes each rank's part back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..errors import LaunchError
from ..private.torch import own_parameters
from ..text import listed
from .tensors import unwrapped

if TYPE_CHECKING:
    from .base import Strategy

# A dictionary of a module's parameters, a key in it, and the parameter of the engine at that key.
_Place = tuple[dict[str, nn.Parameter | None], str, nn.Parameter]


@contextlib.contextmanager
def whole_parameters(strategy: Strategy, names: Sequence[str]) -> Iterator[nn.Module]:
    """Put whole parameters in full precision into the model, and keep what the block makes of them.

    Collective: enter and leave it on every rank.

    Args:
        strategy: has the prepared model.
        names: of parameters, or of modules that hold them; empty: all parameters.

    Yields:
        The model as the task built it, without wrappers.

    Raises:
        LaunchError: the model has no parameter of these names.
    """
    wholes = _gather(strategy, names)
    if not wholes:
        raise LaunchError(f"the model has no parameters called {listed(names)}")

    places = _places_of(strategy.model, wholes)
    for table, key, divided in places:
        _, table[key] = wholes[id(divided)]
    try:
        with torch.no_grad():
            yield unwrapped(strategy.model)
    finally:
        for table, key, divided in places:
            table[key] = divided

    strategy.fill((name, whole.data) for name, whole in wholes.values())


def _gather(strategy: Strategy, names: Sequence[str]) -> dict[int, tuple[str, nn.Parameter]]:
    """Return name and whole value of parameters by the id of the engine's own. Collective."""
    prefixes = tuple(f"{name}." for name in names) or ("",)
    wholes = {}
    for name, parameter in strategy.parameters(trainable=None):
        if not f"{name}.".startswith(prefixes):
            continue
        whole = strategy.full_tensor(name, parameter)
        if whole.dtype in (torch.bfloat16, torch.float16):  # frozen: in the engine's precision
            whole = whole.float()
        wholes[id(parameter)] = name, nn.Parameter(whole, requires_grad=parameter.requires_grad)
    return wholes


def _places_of(model: nn.Module, wholes: dict[int, tuple[str, nn.Parameter]]) -> list[_Place]:
    """List where in the model's modules the engine's parameters are; a shared one has several."""
    places = []
    for module in model.modules():
        # DeepSpeed's own kind of dict gathers each parameter in its items().
        own = own_parameters(module)
        for key, parameter in dict.items(own):
            if parameter is not None and id(parameter) in wholes:
                places.append((own, key, parameter))
    return places
