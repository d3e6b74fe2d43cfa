"""What is compiled of a model, and functions of a task that are compiled where its model is.

``compile: true`` compiles the modules of a model. What a task computes from their outputs is code
of its own, and runs operation by operation: the loss of logits that were not computed in the model
reads and writes each of them a dozen times.

``torch.compile`` silently leaves out what it cannot trace, or is told to skip: so the graphs that
it makes of the model are counted, those of such functions left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from ..private.torch import graphs_compiled
from .tensors import unwrapped

Function = TypeVar("Function", bound=Callable[..., Any])


class CountedFunction:
    """A compiled function that counts the graphs that are made of it.

    Args:
        compiled: what ``torch.compile`` returned.
    """

    def __init__(self, compiled: Callable[..., Any]) -> None:
        self.compiled = compiled
        self.graphs = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before = graphs_compiled()
        result = self.compiled(*args, **kwargs)
        self.graphs += graphs_compiled() - before
        return result


def remember_settings(model: nn.Module, settings: Mapping[str, Any]) -> None:
    """Keep how a model is compiled, for ``compiled_as``, and count its graphs from now on.

    Args:
        settings: of ``torch.compile``.
    """
    model.samecurve_compile_settings = dict(settings)  # type: ignore[assignment]
    model.samecurve_compiled = {}  # type: ignore[assignment]
    model.samecurve_graphs_before = graphs_compiled()  # type: ignore[assignment]


def graphs_of(model: nn.Module) -> int:
    """Return how many graphs were compiled since ``remember_settings``, but those of functions.

    Args:
        model: as a task is given it; a compiled one.
    """
    inner: Any = unwrapped(model)
    of_functions = sum(function.graphs for function in inner.samecurve_compiled.values())
    return int(graphs_compiled() - inner.samecurve_graphs_before - of_functions)


def compiled_as(model: nn.Module, function: Function) -> Function:
    """Return a function of tensors, compiled as the model is; itself where the model is not.

    Args:
        model: as a task is given it.
        function: of a module, so that it is compiled once.
    """
    inner: Any = unwrapped(model)
    settings = getattr(inner, "samecurve_compile_settings", None)
    if settings is None:
        return function

    if function not in inner.samecurve_compiled:
        inner.samecurve_compiled[function] = CountedFunction(torch.compile(function, **settings))
    compiled: Function = inner.samecurve_compiled[function]
    return compiled
