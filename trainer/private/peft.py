"""The private attributes of peft by which a model computes without its adapter, or with another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def without_adapter(model: nn.Module, instead: str | None = None) -> Iterator[None]:
    """Compute with a model as if it had no adapters, or with the adapter ``instead``.

    By ``_disable_adapters`` and ``_active_adapter`` (peft 0.21).

    The public methods freeze the parameters of the adapters as well, which may be copies of an
    engine at that time.
    """
    name, value = ("_active_adapter", [instead]) if instead else ("_disable_adapters", True)
    before = {module: getattr(module, name) for module in model.modules() if hasattr(module, name)}
    for layer in before:
        setattr(layer, name, value)
    try:
        yield
    finally:
        for layer, own in before.items():
            setattr(layer, name, own)
