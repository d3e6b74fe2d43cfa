"""Parameters that peft's adapters replace while the model computes."""

from __future__ import annotations

from typing import Any

from torch import nn


def set_by_adapters(model: nn.Module) -> dict[tuple[int, str], nn.Parameter]:
    """Find the frozen parameters that peft's adapters of experts set in each forward pass.

    The adapter registers a ``torch.nn.utils.parametrize`` on the parameter for the length of the
    forward pass. torch counts that as an edit in place, although the value stays the same; so these
    parameters are left out where edits are looked for.

    Returns:
        The parameters by the id of their module and their name in it.
    """
    found = {}
    for module in model.modules():
        name = getattr(module, "parameter_name", None)
        if name is None or not hasattr(module, "lora_A"):
            continue

        base: Any = module.get_base_layer()  # type: ignore[operator]
        parameter = base.get_parameter(name)
        if not parameter.requires_grad:
            found[id(base), name] = parameter
    return found
