"""Buffers: what each rank of a model keeps for itself, such as BatchNorm's running statistics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

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


def kept_in_full(model: nn.Module) -> Callable[[torch.device], None]:
    """Take note of an unprepared model's floating buffers; the answer puts them back where an engine has cast them.

    A tenth of each batch's mean is added to running statistics, which bfloat16 with its three digits would mostly
    swallow; rotary positions beyond 256 are not told apart in it. torch wants the scale and shift beside full
    statistics in full precision as well, so these are cast where they are used.
    """
    copies = {id(buffer): buffer.clone() for buffer in model.buffers() if buffer.is_floating_point()}
    places = [
        (module, key, copies[id(buffer)])
        for module in model.modules()
        for key, buffer in module._buffers.items()
        if buffer is not None and id(buffer) in copies
    ]
    # Sharding makes classes of its own, so the kinds are noted as well.
    norms = [(m, type(m)) for m in model.modules() if isinstance(m, _NormBase) and m.track_running_stats]

    def put_back(device: torch.device) -> None:
        there = {id(copy): copy.to(device) for copy in copies.values()}
        for module, key, copy in places:
            module._buffers[key] = there[id(copy)]
        for module, kind in norms:
            module.forward = _with_full_parameters(module, kind)

    return put_back


def _with_full_parameters(module: nn.Module, kind: type[nn.Module]) -> Callable[[Tensor], Tensor]:
    # A shallow copy shares the buffers; what stands in its own attributes hides the parameters.
    shadow = kind.__new__(kind)
    shadow.__dict__ = dict(module.__dict__)

    def forward(value: Tensor) -> Tensor:
        shadow.training = module.training
        for key, parameter in module._parameters.items():
            shadow.__dict__[key] = None if parameter is None else parameter.float()
        return kind.forward(shadow, value)  # type: ignore[no-any-return]

    return forward
