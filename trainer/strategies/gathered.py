"""The whole parameters that FSDP2 gathers a layer to, while the layer computes.

``fully_shard`` replaces each parameter by its shard, a DTensor. In the forward and the backward
pass of a unit the modules see another object: the gathered parameter, which is always the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import LaunchError
from ..private.torch import gathered_by


def gathered_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter | None]]:
    """List the gathered parameters of all FSDP2 units by name; None where there is none yet.

    Args:
        model: sharded by ``fully_shard``.
    """
    from torch.distributed.fsdp import FSDPModule

    found = []
    for unit in model.modules():
        if not isinstance(unit, FSDPModule):
            continue
        for parameter in gathered_by(unit):
            found.append((parameter.name, parameter.unsharded))
    return found


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
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    units = {}
    for path, module in model.named_modules():
        if isinstance(module, FSDPModule):
            units[f"{path}." if path else ""] = module

    for name, of_parameter in hooks.items():
        innermost = max((path for path in units if name.startswith(path)), key=len)
        unit = units[innermost]

        unit.unshard()
        gathered = model.get_parameter(name)
        if of_parameter and isinstance(gathered, DTensor):
            raise LaunchError(
                f"{name} has a hook on its gradient, of which tensor parallelism has parts only"
            )
        for hook in of_parameter.values():
            gathered.register_hook(hook)  # type: ignore[no-untyped-call]
        unit.reshard()
