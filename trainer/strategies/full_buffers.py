"""Buffers that keep full precision in an engine that casts the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..private.torch import BatchNormBase, own_buffers, own_parameters, set_buffer


def keep_buffers_fp32(model: nn.Module) -> Callable[[torch.device], None]:
    """Copy the floating-point buffers of a model that an engine is about to cast.

    Bfloat16 would swallow updates of BatchNorm's statistics, and rotary positions beyond 256. torch
    wants scale and shift in full precision beside such statistics.

    Returns:
        A function that puts the buffers back on a device, after the engine has cast them.
    """
    copies: dict[Any, Tensor] = {b: b.clone() for b in model.buffers() if b.is_floating_point()}
    places = []
    norms = []  # with their classes, which sharding replaces
    for module in model.modules():
        for key, buffer in own_buffers(module).items():
            if buffer in copies:
                places.append((module, key, buffer))
        if isinstance(module, BatchNormBase) and module.track_running_stats:
            norms.append((module, type(module)))

    def put_back(device: torch.device) -> None:
        on_device = {buffer: copy.to(device) for buffer, copy in copies.items()}
        for module, key, buffer in places:
            set_buffer(module, key, on_device[buffer])
        for module, kind in norms:
            module.forward = _with_full_parameters(module, kind)

    return put_back


def _with_full_parameters(module: nn.Module, kind: type[nn.Module]) -> Callable[[Tensor], Tensor]:
    """Return the forward method of a module with the parameters cast to float32."""
    # A shallow copy of the module shares the buffers. Attributes of the copy are found before the
    # parameters of the same name.
    shadow = kind.__new__(kind)
    shadow.__dict__ = dict(module.__dict__)

    def forward(value: Tensor) -> Tensor:
        shadow.training = module.training
        for key, parameter in own_parameters(module).items():
            shadow.__dict__[key] = None if parameter is None else parameter.float()
        return kind.forward(shadow, value)  # type: ignore[no-any-return]

    return forward
