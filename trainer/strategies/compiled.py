"""Functions of a task that are compiled if its model is.

``compile: true`` compiles the modules of a model. What a task computes from their outputs is code
of its own, and runs operation by operation: the loss of logits that were not computed in the model
reads and writes each of them a dozen times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from .tensors import unwrapped

Function = TypeVar("Function", bound=Callable[..., Any])


def remember_settings(model: nn.Module, settings: Mapping[str, Any]) -> None:
    """Keep how a model is compiled, for ``compiled_as``.

    Args:
        settings: of ``torch.compile``.
    """
    model.samecurve_compile_settings = dict(settings)  # type: ignore[assignment]
    model.samecurve_compiled = {}  # type: ignore[assignment]


def compiled_as(model: nn.Module, function: Function) -> Function:
    """Return a function of tensors, compiled as the model is, or itself if the model is not.

    Args:
        model: as a task is given it.
        function: of a module, so that it is compiled once.
    """
    inner: Any = unwrapped(model)
    settings = getattr(inner, "samecurve_compile_settings", None)
    if settings is None:
        return function
    if function not in inner.samecurve_compiled:
        inner.samecurve_compiled[function] = torch.compile(function, **settings)
    compiled: Function = inner.samecurve_compiled[function]
    return compiled
