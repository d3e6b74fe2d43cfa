"""The private attributes of peft by which a model computes without its adapter, or with another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Compute with a model as if it had no adapters, by ``_disable_adapters`` (peft 0.19).

    The public ``disable_adapter`` freezes the parameters of the adapters as well, which may be
    copies of an engine at that time.
    """
    with _changed(model, "_disable_adapters", True):
        yield


@contextmanager
def with_adapter(model: nn.Module, name: str) -> Iterator[None]:
    """Compute with another adapter of a model, by ``_active_adapter`` (peft 0.21).

    The public ``set_adapter`` freezes the parameters of the other adapters as well.
    """
    with _changed(model, "_active_adapter", [name]):
        yield


@contextmanager
def _changed(model: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of all layers with adapters another value for a while."""
    layers = [m for m in model.modules() if hasattr(m, name)]
    before = [getattr(layer, name) for layer in layers]
    for layer in layers:
        setattr(layer, name, value)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            setattr(layer, name, own)
