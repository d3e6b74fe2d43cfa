"""Buffers: what each rank of a model keeps for itself, such as BatchNorm's running statistics."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from accelerate import Accelerator


@contextlib.contextmanager
def kept(model: nn.Module, *, when: bool) -> Iterator[None]:
    """The buffers are afterwards what they were before, if ``when``: for a batch that does not count."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()] if when else []
    yield
    for buffer, value in before:
        buffer.copy_(value)


@torch.no_grad()
def agree(model: nn.Module, accelerator: Accelerator) -> None:
    """The same buffers on every rank: the mean of floating ones, rank 0's of the others. One packed reduction.

    Whole numbers travel as float64, exact up to 2**53. Every rank calls it.
    """
    buffers = list(model.buffers())
    if accelerator.num_processes == 1 or not buffers:
        return
    packed = torch.cat([_part(buffer, accelerator) for buffer in buffers])
    parts = accelerator.reduce(packed, "sum").split([2 * b.numel() if b.is_complex() else b.numel() for b in buffers])
    for buffer, part in zip(buffers, parts, strict=True):
        whole = torch.view_as_complex(part.view(*buffer.shape, 2)) if buffer.is_complex() else part.view(buffer.shape)
        buffer.copy_(whole)


def _part(buffer: Tensor, accelerator: Accelerator) -> Tensor:
    """What this rank adds to the sum, flat."""
    wide = (torch.view_as_real(buffer) if buffer.is_complex() else buffer).double().flatten()
    if buffer.is_floating_point() or buffer.is_complex():
        return wide / float(accelerator.num_processes)
    return wide * float(accelerator.is_main_process)
