"""Bringing a model into the form that every strategy can take."""

from __future__ import annotations

import torch
from torch import nn

from ..errors import LaunchError
from ..private.torch import is_compiled


def refuse_compiled(model: nn.Module) -> None:
    """Raise ``LaunchError`` for layers that ``torch.compile`` has wrapped.

    DeepSpeed fails on the wrapper (0.19), and names of parameters would differ.
    """
    for name, module in model.named_modules():
        if is_compiled(module):
            raise LaunchError(
                f"{name or 'the model'} is compiled already: build it without torch.compile, "
                "and set compile: true"
            )


def make_contiguous(model: nn.Module) -> None:
    """Lay tensors out row by row, in which order parts of them are exchanged and saved."""
    for tensor in (*model.parameters(), *model.buffers()):
        # Sparse tensors have no rows.
        if tensor.layout == torch.strided and not tensor.is_contiguous():
            tensor.data = tensor.data.contiguous()
