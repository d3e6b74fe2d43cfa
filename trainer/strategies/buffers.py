"""Buffers: what each rank of a model keeps for itself, such as BatchNorm's running statistics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from accelerate.utils import broadcast
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from .tensors import local

if TYPE_CHECKING:
    from accelerate import Accelerator


@contextlib.contextmanager
def restored_buffers(model: nn.Module) -> Iterator[None]:
    """Put the buffers back afterwards, also where they are replaced: for a batch that does not
    count.
    """
    before = [(*place, place[-1].clone()) for place in _places(model) if _can_change(place[-1])]
    yield
    for module, key, buffer, value in before:
        module._buffers[key] = buffer.copy_(value)


class BuffersBefore:
    """The buffers as they were before a step, for a step that is left out.

    A step costs one copy of all buffers, and the memory of it: nothing tells which of them a
    forward pass changes, for torch does not count what its kernels write into BatchNorm's
    statistics.

    Args:
        model: prepared; its modules stay the same.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._copies: list[tuple[list[_Place], Tensor]] = []
        self._absent: list[tuple[nn.Module, str]] = []

    def take(self) -> None:
        """Copy the buffers: one kernel for those of a dtype."""
        alike: dict[tuple[torch.device, torch.dtype], list[_Place]] = {}
        self._absent = []
        for module in self._modules:
            for key, buffer in module._buffers.items():
                if buffer is None:
                    self._absent.append((module, key))
                elif _can_change(buffer):
                    alike.setdefault((buffer.device, buffer.dtype), []).append(
                        (module, key, buffer)
                    )
        self._copies = [
            (places, _flat(buffer for *_, buffer in places)) for places in alike.values()
        ]

    def put_back(self, left_out: Tensor) -> None:
        """Give the buffers the values of ``take`` where the step was left out, for whatever reason.

        On a GPU nobody waits to know, unless a buffer was replaced by one of another form.

        Args:
            left_out: a truth value, on the device.
        """
        if left_out.device.type == "cpu" and not left_out:
            return
        replaced: list[tuple[nn.Module, str, Tensor | None]] = []
        for module, key in self._absent:
            if module._buffers.get(key) is not None:
                replaced.append((module, key, None))
        for places, copies in self._copies:
            parts = torch.split(copies, [buffer.numel() for *_, buffer in places])
            stayed: list[Tensor] = []
            before: list[Tensor] = []
            for (module, key, buffer), part in zip(places, parts, strict=True):
                now = module._buffers.get(key)
                if now is not None and _form(now) == _form(buffer):
                    stayed.append(local(now).detach())
                    before.append(part)
                else:
                    replaced.append((module, key, part.view_as(local(buffer)).clone()))
            if stayed:
                chosen = torch.where(left_out.to(copies.device), _flat(before), _flat(stayed))
                news = torch.split(chosen, [buffer.numel() for buffer in stayed])
                torch._foreach_copy_(
                    stayed, [new.view_as(old) for new, old in zip(news, stayed, strict=True)]
                )
        if replaced and left_out:
            for module, key, value in replaced:
                module._buffers[key] = value


_Place = tuple[nn.Module, str, Tensor]  # a buffer with the module that has it, and its name there


def _can_change(buffer: Tensor) -> bool:
    """Tell whether code could write into a buffer: not into a sparse one, nor where elements share
    their memory.
    """
    return buffer.layout == torch.strided and not (0 in buffer.stride() and buffer.numel() > 1)


def _form(buffer: Tensor) -> tuple[object, ...]:
    return buffer.shape, buffer.dtype, buffer.device, _can_change(buffer)


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([local(tensor).detach().reshape(-1) for tensor in tensors])


def _places(model: nn.Module) -> Iterator[_Place]:
    """Yield each buffer as often as modules have it, with the module and its name there."""
    for module in model.modules():
        yield from (
            (module, key, buffer) for key, buffer in module._buffers.items() if buffer is not None
        )


@torch.no_grad()
def sync(model: nn.Module, accelerator: Accelerator) -> None:
    """Make the buffers the same on every rank: the mean of floating ones, rank 0's of the others.

    Collective: call on every rank. One packed reduction in float64, and a broadcast for each of the
        others.
    """
    if accelerator.num_processes == 1:
        return
    # A sparse one (the edges of a graph) is a constant; no collective takes it, and no checkpoint.
    kept = [
        buffer for buffer in model.buffers() if buffer.layout == torch.strided and buffer.numel()
    ]
    averaged = [buffer for buffer in kept if buffer.is_floating_point() or buffer.is_complex()]
    if averaged:
        packed = (
            torch.cat([_real(buffer).double().flatten() for buffer in averaged])
            / accelerator.num_processes
        )
        parts = accelerator.reduce(packed, "sum").split(
            [_real(buffer).numel() for buffer in averaged]
        )
        for buffer, part in zip(averaged, parts, strict=True):
            _real(buffer).copy_(part.view(_real(buffer).shape))
    for buffer in kept:
        if not (buffer.is_floating_point() or buffer.is_complex()):
            # As bytes: gloo and NCCL know no 16-bit integers.
            buffer.copy_(
                broadcast(buffer.reshape(-1).view(torch.uint8))
                .view(buffer.dtype)
                .view(buffer.shape)
            )


def _real(buffer: Tensor) -> Tensor:
    """View a complex tensor as real numbers."""
    return torch.view_as_real(buffer) if buffer.is_complex() else buffer


def keep_buffers_fp32(model: nn.Module) -> Callable[[torch.device], None]:
    """Take note of an unprepared model's floating buffers; the answer puts them back where an
    engine has cast them.

    A tenth of each batch's mean is added to running statistics, which bfloat16 with its three
    digits would mostly swallow; rotary positions beyond 256 are not told apart in it. torch wants
    the scale and shift beside full statistics in full precision as well, so these are cast where
    they are used.
    """
    copies = {
        id(buffer): buffer.clone() for buffer in model.buffers() if buffer.is_floating_point()
    }
    places = [
        (module, key, copies[id(buffer)])
        for module, key, buffer in _places(model)
        if id(buffer) in copies
    ]
    # Sharding makes classes of its own, so the kinds are noted as well.
    norms = [
        (m, type(m)) for m in model.modules() if isinstance(m, _NormBase) and m.track_running_stats
    ]

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
