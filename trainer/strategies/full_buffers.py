"""Buffers that keep full precision in an engine that casts the model."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..private.torch import BatchNormBase, own_buffers, own_parameters


def keep_buffers_fp32(model: nn.Module) -> Callable[[torch.device], None]:
    """Remember the floating-point buffers of a model that an engine is about to cast.

    Bfloat16 would swallow updates of BatchNorm's statistics, and rotary positions beyond 256. torch
    wants scale and shift in full precision beside such statistics. A cast (of DeepSpeed
    0.19.0) puts other tensors in the place of the buffers.

    Returns:
        A function that puts the buffers back on a device, after the engine has cast them.
    """
    places = [
        (module, key, buffer)
        for module in model.modules()
        for key, buffer in own_buffers(module).items()
        if buffer is not None and buffer.is_floating_point()
    ]
    # With their classes, which sharding replaces.
    norms = [
        (module, type(module))
        for module in model.modules()
        if isinstance(module, BatchNormBase) and module.track_running_stats
    ]

    def put_back(device: torch.device) -> None:
        for module, key, buffer in places:
            buffer.data = buffer.data.to(device)
            own_buffers(module)[key] = buffer
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
