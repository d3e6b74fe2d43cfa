"""Buffers: what each rank of a model keeps for itself, such as BatchNorm's running statistics.

No strategy shards buffers, and none sends them around in a step. Each rank updates its own; they
are made the same (``sync``) before they are used in an evaluation or written to a file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from accelerate.utils import broadcast
from torch import Tensor, nn

from ..private.torch import BatchNormBase, copy_all, own_buffers, own_parameters, set_buffer
from .tensors import local

if TYPE_CHECKING:
    from accelerate import Accelerator

_Place = tuple[nn.Module, str, Tensor]  # a module, the name of a buffer in it, and the buffer


@contextlib.contextmanager
def restored_buffers(model: nn.Module) -> Iterator[None]:
    """Put the buffers back after a batch that does not count, also where they were replaced."""
    before = []
    for module, key, buffer in _places(model):
        if _can_change(buffer):
            before.append((module, key, buffer, buffer.clone()))

    yield

    for module, key, buffer, value in before:
        set_buffer(module, key, buffer.copy_(value))


class BuffersBefore:
    """The buffers as they were before a step, for a step that is left out.

    It costs a copy of all buffers in each step, and the memory of it. Nothing tells which buffers a
    forward pass changes: torch does not count what its kernels write into BatchNorm's statistics.

    Args:
        model: prepared; its modules stay the same.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._copies: list[tuple[list[_Place], Tensor]] = []
        self._absent: list[tuple[nn.Module, str]] = []

    def take(self) -> None:
        """Copy the buffers: one kernel for those of one dtype and device."""
        alike: dict[tuple[torch.device, torch.dtype], list[_Place]] = {}
        self._absent = []
        for module in self._modules:
            for key, buffer in own_buffers(module).items():
                if buffer is None:
                    self._absent.append((module, key))
                elif _can_change(buffer):
                    places = alike.setdefault((buffer.device, buffer.dtype), [])
                    places.append((module, key, buffer))

        self._copies = []
        for places in alike.values():
            copies = _flat(buffer for _, _, buffer in places)
            self._copies.append((places, copies))

    def put_back(self, left_out: Tensor) -> None:
        """Give the buffers the values of ``take`` where the step was left out, for any reason.

        On a GPU the host does not wait for the outcome, unless the forward pass has replaced a
        buffer by one of another shape, dtype or device.

        Args:
            left_out: a truth value, on the device.
        """
        if left_out.device.type == "cpu" and not left_out:
            return

        replaced: list[tuple[nn.Module, str, Tensor | None]] = []
        for module, key in self._absent:
            if own_buffers(module).get(key) is not None:
                replaced.append((module, key, None))
        for places, copies in self._copies:
            replaced += _choose(places, copies, left_out)

        if replaced and left_out:
            for module, key, value in replaced:
                set_buffer(module, key, value)


def _choose(
    places: list[_Place], copies: Tensor, left_out: Tensor
) -> list[tuple[nn.Module, str, Tensor | None]]:
    """Give buffers of one dtype their earlier values where ``left_out`` is true, on the device.

    Args:
        places: where the buffers were before the step.
        copies: their values then, flat, one after the other.
        left_out: a truth value, on any device.

    Returns:
        Module, name and earlier value of buffers that were replaced by others of another form.
    """
    replaced: list[tuple[nn.Module, str, Tensor | None]] = []
    current: list[Tensor] = []
    earlier: list[Tensor] = []
    copies_of_each = torch.split(copies, [buffer.numel() for _, _, buffer in places])
    for (module, key, buffer), copy in zip(places, copies_of_each, strict=True):
        now = own_buffers(module).get(key)
        if now is None or _form(now) != _form(buffer):
            value = copy.view_as(local(buffer)).clone()
            replaced.append((module, key, value))
        else:
            current.append(local(now).detach())
            earlier.append(copy)
    if not current:
        return replaced

    # One kernel chooses between the values of all buffers, and one copies them into the buffers.
    chosen = torch.where(left_out.to(copies.device), _flat(earlier), _flat(current))
    values = []
    flat_values = torch.split(chosen, [buffer.numel() for buffer in current])
    for value, buffer in zip(flat_values, current, strict=True):
        values.append(value.view_as(buffer))
    copy_all(current, values)
    return replaced


def _can_change(buffer: Tensor) -> bool:
    """Return whether code can write into a buffer.

    It cannot write into a sparse one, nor into one whose elements share their memory (an expanded
    one).
    """
    if buffer.layout != torch.strided:
        return False
    is_expanded = 0 in buffer.stride() and buffer.numel() > 1
    return not is_expanded


def _form(buffer: Tensor) -> tuple[object, ...]:
    """Return what a buffer must have in common with another one to take its values."""
    return buffer.shape, buffer.dtype, buffer.device, _can_change(buffer)


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    """Copy this rank's parts of tensors into one, one after the other."""
    return torch.cat([local(tensor).detach().reshape(-1) for tensor in tensors])


def _places(model: nn.Module) -> Iterator[_Place]:
    """Yield each buffer with the module that has it and its name there; a shared one repeatedly."""
    for module in model.modules():
        for key, buffer in own_buffers(module).items():
            if buffer is not None:
                yield module, key, buffer


@torch.no_grad()
def sync(model: nn.Module, accelerator: Accelerator) -> None:
    """Make the buffers the same on every rank. Collective: call on every rank.

    Floating-point and complex buffers become the mean over the ranks, by one reduction in float64.
    The others become rank 0's, by a broadcast each.
    """
    if accelerator.num_processes == 1:
        return

    # A sparse one (the edges of a graph) is a constant; no collective takes it, and no checkpoint.
    averaged: list[Tensor] = []
    broadcasted: list[Tensor] = []
    for buffer in model.buffers():
        if buffer.layout != torch.strided or not buffer.numel():
            continue
        if buffer.is_floating_point() or buffer.is_complex():
            averaged.append(buffer)
        else:
            broadcasted.append(buffer)

    if averaged:
        _average(averaged, accelerator)
    for buffer in broadcasted:
        # As bytes: gloo and NCCL know no 16-bit integers.
        sent = broadcast(buffer.reshape(-1).view(torch.uint8))
        buffer.copy_(sent.view(buffer.dtype).view(buffer.shape))


def _average(buffers: list[Tensor], accelerator: Accelerator) -> None:
    """Set buffers to their mean over the ranks. Collective: call on every rank."""
    reals = [_real(buffer) for buffer in buffers]
    packed = torch.cat([real.double().flatten() for real in reals])
    packed = packed / accelerator.num_processes
    mean = accelerator.reduce(packed, "sum")

    parts = mean.split([real.numel() for real in reals])
    for real, part in zip(reals, parts, strict=True):
        real.copy_(part.view(real.shape))


def _real(buffer: Tensor) -> Tensor:
    """View a complex tensor as real numbers."""
    if buffer.is_complex():
        return torch.view_as_real(buffer)
    return buffer


def keep_buffers_fp32(model: nn.Module) -> Callable[[torch.device], None]:
    """Copy the floating-point buffers of a model that an engine is about to cast.

    BatchNorm adds a tenth of each batch's mean to its running statistics, which bfloat16 with its
    three digits would mostly swallow; rotary positions beyond 256 are not distinct in it. torch
    wants scale and shift in full precision as well where the statistics are, so these parameters
    are cast where they are used.

    Returns:
        A function that puts the buffers back on a device, after the engine has cast them.
    """
    copies: dict[int, Tensor] = {}
    for buffer in model.buffers():
        if buffer.is_floating_point():
            copies[id(buffer)] = buffer.clone()

    places: list[_Place] = []
    for module, key, buffer in _places(model):
        if id(buffer) in copies:
            places.append((module, key, copies[id(buffer)]))

    # With their classes, for sharding replaces these.
    norms: list[tuple[nn.Module, type[nn.Module]]] = []
    for module in model.modules():
        if isinstance(module, BatchNormBase) and module.track_running_stats:
            norms.append((module, type(module)))

    def put_back(device: torch.device) -> None:
        on_device = {id(copy): copy.to(device) for copy in copies.values()}
        for module, key, copy in places:
            set_buffer(module, key, on_device[id(copy)])
        for module, kind in norms:
            module.forward = _with_full_parameters(module, kind)

    return put_back


def _with_full_parameters(module: nn.Module, kind: type[nn.Module]) -> Callable[[Tensor], Tensor]:
    """Return the forward method of a module with its parameters cast to float32."""
    # A shallow copy of the module: it shares the buffers, and attributes set on it are found before
    # the parameters of the same name.
    shadow = kind.__new__(kind)
    shadow.__dict__ = dict(module.__dict__)

    def forward(value: Tensor) -> Tensor:
        shadow.training = module.training
        for key, parameter in own_parameters(module).items():
            shadow.__dict__[key] = None if parameter is None else parameter.float()
        return kind.forward(shadow, value)  # type: ignore[no-any-return]

    return forward
