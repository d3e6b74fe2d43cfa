"""Functions of a task that are compiled if the model is.

``compile: true`` compiles the modules of a model. The task's own code behind the model would run
operation by operation: a loss outside of the model reads and writes each logit a dozen times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import nn

from .tensors import unwrapped

Function = TypeVar("Function", bound=Callable[..., Any])


def remember_settings(model: nn.Module, settings: Mapping[str, Any]) -> None:
    """Keep the settings of ``torch.compile`` in a model, for ``compiled_as``."""
    model.samecurve_compile = cache(partial(torch.compile, **settings))  # type: ignore[assignment]


def compiled_as(model: nn.Module, function: Function) -> Function:
    """Return a function of tensors, compiled as the model is, or unchanged if the model is not.

    Define the function in a module, not in a call, so that torch compiles a single function.
    """
    compiled: Any = getattr(unwrapped(model), "samecurve_compile", None)
    return compiled(function) if compiled else function
