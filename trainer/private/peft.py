"""The private attribute of peft that comparisons with a model without its adapter depend on."""

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
    layers: list[Any] = [m for m in model.modules() if hasattr(m, "_disable_adapters")]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
