"""What peft's adapters do to the parameters of the model below them."""

from __future__ import annotations

from typing import Any

from torch import nn


def set_by_adapters(model: nn.Module) -> dict[tuple[int, str], nn.Parameter]:
    """Find the frozen parameters that peft's adapters of experts set to themselves in each forward
    pass.

    That counts as a change in place (``torch.nn.utils.parametrize`` does it), and changes no value.

    Returns:
        Each by its module's id and its name in the module.
    """
    found = {}
    for module in model.modules():
        name = getattr(module, "parameter_name", None)
        if name is not None and hasattr(module, "lora_A"):
            base: Any = module.get_base_layer()  # type: ignore[operator]
            parameter = base.get_parameter(name)
            if not parameter.requires_grad:
                found[id(base), name] = parameter
    return found
