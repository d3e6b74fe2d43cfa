"""A block of code that tries something out on a model and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from ..data import rng
from ..strategies.buffers import restored_buffers


@contextmanager
def unchanged(model: nn.Module, *, compiled: bool) -> Iterator[None]:
    """Restore generators, buffers and modes of modules after the block.

    Args:
        model: prepared.
        compiled: whether it is compiled. Then it runs uncompiled in the block: torch compiles a
            second shape in another way than the first, and the training must have the first.
    """
    modes = [(module, module.training) for module in model.modules()]
    states = rng.read()
    with ExitStack() as block:
        block.enter_context(restored_buffers(model))
        if compiled:  # torch's compiler takes a second to import
            block.enter_context(torch.compiler.set_stance("force_eager"))
        yield
    rng.write(states)
    for module, training in modes:
        module.training = training
