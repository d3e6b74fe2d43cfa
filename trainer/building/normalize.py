"""Bringing a model into the form that every strategy can take."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from ..errors import LaunchError
from ..private.torch import is_compiled, storage_number


def refuse_compiled(model: nn.Module) -> None:
    """Refuse compiled layers: DeepSpeed fails on them (0.19), and names would differ."""
    for name, module in model.named_modules():
        if is_compiled(module):
            raise LaunchError(
                f"{name or 'the model'} is compiled already: build it without torch.compile, "
                "and set compile: true"
            )


def refuse_shared_memory(model: nn.Module) -> None:
    """Refuse parameters that share memory: a cast or a strategy gives each a memory of its own."""
    spans = []
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.layout == torch.strided and tensor.numel():
            begin = tensor.data_ptr()  # of a tensor on the meta device, within the memory
            memory = storage_number(tensor) if tensor.is_meta else 0
            # A buffer may be a view of a constant: of another buffer, or a frozen parameter.
            kind = isinstance(tensor, nn.Parameter) + tensor.requires_grad
            # Columns of a matrix lie between each other: only their first element counts.
            end = begin + (tensor.nbytes if tensor.is_contiguous() else 1)
            spans.append((memory, begin, end, name, kind))

    for (memory, _, end, name, kind), (other_memory, begin, _, other, other_kind) in pairwise(
        sorted(spans)
    ):
        if memory == other_memory and begin < end and kind + other_kind > 1:
            raise LaunchError(
                f"{name} and {other} share a memory, which stays so only if nothing is cast or "
                "divided: use one parameter in both places (transposed in forward), or give each "
                "its own (clone)"
            )


def make_contiguous(model: nn.Module) -> None:
    """Lay tensors out row by row, in which order parts of them are exchanged and saved."""
    for tensor in (*model.parameters(), *model.buffers()):
        # Sparse tensors have no rows.
        if tensor.layout == torch.strided and not tensor.is_contiguous():
            tensor.data = tensor.data.contiguous()
