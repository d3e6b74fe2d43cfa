"""Bringing a model into the form that every strategy can take."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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


def make_contiguous(model: nn.Module) -> list[str]:
    """Lay tensors out row by row, in which order parts of them are exchanged and saved.

    Returns:
        A notice where parameters were laid out anew.
    """
    parameters = [parameter for parameter in model.parameters() if not _is_contiguous(parameter)]
    # An expanded buffer has one place for several elements.
    buffers = [buffer for buffer in model.buffers() if not _is_contiguous(buffer)]
    for tensor in (*parameters, *buffers):
        tensor.data = tensor.data.contiguous()

    if not parameters:
        return []
    return [
        f"{len(parameters)} parameters are laid out row by row (channels_last, transposed views); "
        "inputs in channels_last still compute in that layout"
    ]


def _is_contiguous(tensor: Tensor) -> bool:
    return tensor.layout != torch.strided or tensor.is_contiguous()  # sparse ones have no rows
