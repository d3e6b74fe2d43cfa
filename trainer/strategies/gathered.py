"""The whole parameters that FSDP2 gathers a layer to, while the layer computes.

Modules then see another object than the shard, which stays the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from ..private.torch import own_parameters


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
        path, _, key = name.rpartition(".")
        # The model's attribute of a scalar is a view, not the parameter.
        whole: Any = own_parameters(model.get_submodule(path))[key]
        for hook in of_parameter.values():
            whole.register_hook(hook)
        unit.reshard()


def units_of(model: nn.Module) -> dict[str, Any]:
    """Return the units of a sharded model by the prefix of their parameters' names."""
    return {
        f"{path}." if path else "": module
        for path, module in model.named_modules()
        if isinstance(module, FSDPModule)
    }
