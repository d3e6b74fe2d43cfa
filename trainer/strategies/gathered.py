"""The whole parameters that FSDP2 gathers a layer to, while the layer computes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import LaunchError


def gathered_parameters(
    model: nn.Module, without: Collection[tuple[int, str]]
) -> list[tuple[Any, Any]]:
    """List what FSDP2 gathers layers to, by name; it is freed after each layer, and its shards stay
    as they were.

    Args:
        without: modules' ids and names in them of parameters that are left out.
    """
    from torch.distributed.fsdp import FSDPModule

    found: list[Any] = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            for group in getattr(
                state, "_fsdp_param_groups", (state._fsdp_param_group,)
            ):  # one in torch 2.11
                found += group.fsdp_params if group else []
    places = ((one, one._module_info) for one in found)
    kept = [one for one, place in places if (id(place.module), place.param_name) not in without]
    return [(one._param_fqn, getattr(one, "_unsharded_param", None)) for one in kept]


def carry_hooks(
    model: nn.Module, hooks: Mapping[str, Mapping[int, Callable[[Tensor], Any]]]
) -> None:
    """Hang hooks on gradients, by the parameter's name, on what FSDP2 gathers it to, always the
    same. Collective.

    They hung on what ``fully_shard`` has replaced, and would never be called.
    """
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    units = {
        f"{path}." if path else "": one
        for path, one in model.named_modules()
        if isinstance(one, FSDPModule)
    }
    for name, of_parameter in hooks.items():
        unit = units[max((path for path in units if name.startswith(path)), key=len)]
        unit.unshard()
        gathered = model.get_parameter(name)
        if of_parameter and isinstance(gathered, DTensor):
            raise LaunchError(
                f"{name} has a hook on its gradient, of which tensor parallelism has parts only"
            )
        for hook in of_parameter.values():
            gathered.register_hook(hook)  # type: ignore[no-untyped-call]
        unit.reshard()
