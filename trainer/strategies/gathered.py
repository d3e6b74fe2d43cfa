"""The whole parameters that FSDP2 gathers a layer to, while the layer computes.

``fully_shard`` replaces each parameter by a shard, a DTensor. In the forward and the backward pass
of a unit the modules see another object: the gathered parameter, which stays the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule


def carry_hooks(
    model: nn.Module, hooks: Mapping[str, Mapping[int, Callable[[Tensor], Any]]]
) -> None:
    """Register hooks on gradients again, on the gathered parameters.

    Collective: call on every rank. The hooks were registered on the parameters that
    ``fully_shard`` has replaced, and would never be called.

    Args:
        model: sharded by ``fully_shard``.
        hooks: by the name of the parameter.
    """
    units = units_of(model)
    for name, of_parameter in hooks.items():
        if not of_parameter:
            continue
        unit = units[max((path for path in units if name.startswith(path)), key=len)]
        unit.unshard()
        for hook in of_parameter.values():
            model.get_parameter(name).register_hook(hook)  # type: ignore[no-untyped-call]
        unit.reshard()


def units_of(model: nn.Module) -> dict[str, Any]:
    """Return the units of a sharded model by the prefix of their parameters' names."""
    return {
        f"{path}." if path else "": module
        for path, module in model.named_modules()
        if isinstance(module, FSDPModule)
    }
