"""Reading and changing parameters outside of the optimizer: whole, and in full precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from ..errors import LaunchError
from ..text import listed
from .tensors import unwrapped

if TYPE_CHECKING:
    from .base import Strategy


@contextlib.contextmanager
def whole_parameters(strategy: Strategy, names: Sequence[str]) -> Iterator[nn.Module]:
    """Hold parameters whole and in full precision in their places, and keep what the block makes of
    them. Collective.

    Args:
        names: of parameters, or of modules that hold them; all where there is none.

    Yields:
        The model as the task built it, without wrappers.
    """
    prefixes = tuple(f"{name}." for name in names) or ("",)
    wholes: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in strategy.parameters(trainable=None):
        if f"{name}.".startswith(prefixes):
            whole = strategy.full_tensor(name, parameter)
            if whole.dtype in (
                torch.bfloat16,
                torch.float16,
            ):  # a frozen one, in the engine's precision
                whole = whole.float()
            wholes[id(parameter)] = name, nn.Parameter(whole, requires_grad=parameter.requires_grad)
    if not wholes:
        raise LaunchError(f"the model has no parameters called {listed(names)}")
    places: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter | None]] = [
        (module._parameters, key, parameter)
        for module in strategy.model.modules()
        for key, parameter in dict.items(
            module._parameters
        )  # (DeepSpeed's own kind of dict would gather each)
        if id(parameter) in wholes
    ]
    for table, key, divided in places:
        _, table[key] = wholes[id(divided)]
    try:
        with torch.no_grad():
            yield unwrapped(strategy.model)
    finally:
        for table, key, divided in places:
            table[key] = divided
    strategy.fill((name, whole.data) for name, whole in wholes.values())
