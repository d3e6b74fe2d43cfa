"""Scalar parameters of a model that an engine divides, which cuts vectors only."""

from __future__ import annotations

from torch import Tensor, nn

from ..private.torch import own_parameters


def hold_scalars_as_vectors(model: nn.Module) -> None:
    """Keep scalar parameters as vectors, which engines can cut. The model's code sees scalars."""
    scalars = [  # all before the first is reshaped: a shared parameter is found under every name
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
        if parameter.dim() == 0
    ]
    for module, name, parameter in scalars:
        kind = type(module)
        members = {name: _scalar(name), "__module__": kind.__module__}
        module.__class__ = type(kind.__name__, (kind,), members)
        parameter.data = parameter.data.reshape(1)


def _scalar(name: str) -> property:
    """Return a property that reads a parameter of a single element as a scalar."""

    def value(module: nn.Module) -> Tensor | None:
        parameter = own_parameters(module)[name]
        # The engine reads the shard, the model the gathered parameter.
        if parameter is None or hasattr(parameter, "to_local"):
            return parameter
        return parameter.reshape(())

    return property(value)
