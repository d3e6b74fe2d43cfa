"""Functions of a task that are compiled if the model is.

``compile: true`` compiles the modules of a model. The task's own code behind the model would run
operation by operation: a loss outside of the model reads and writes each logit a dozen times.
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
    """Return a function of tensors, compiled as the model is, or unchanged if the model is not.

    Args:
        model: as the trainer gives a task the model.
        function: defined in a module, not in a call, so that torch compiles a single function.
    """
    inner: Any = unwrapped(model)
    settings = getattr(inner, "samecurve_compile_settings", None)
    if settings is None:
        return function
    if function not in inner.samecurve_compiled:
        inner.samecurve_compiled[function] = torch.compile(function, **settings)
    compiled: Function = inner.samecurve_compiled[function]
    return compiled
