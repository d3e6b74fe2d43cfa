"""The whole parameters that FSDP2 gathers a layer to, while the layer computes.

Modules then see another object than the shard, which stays the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule


def carry_hooks(
    model: nn.Module, hooks: Mapping[str, Mapping[int, Callable[[Tensor], Any]]]
) -> None:
    """Register hooks by parameter again, which ``fully_shard`` has replaced. Collective."""
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
