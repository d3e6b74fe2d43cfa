"""Outputs of a model in float32, cast when they are read.

Autocast, and a model that is kept in 16 bits, give outputs in 16 bits; tasks get them in float32.
Accelerate casts all of them behind each forward pass. But a transformers model that computes its
loss returns its logits beside it, and a task that takes the loss never reads them: at 32,768 tokens
and 50,304 words that copy alone is 6.6 GB, written and kept for nothing. So the outputs of such a
model are cast one by one, when they are read.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from accelerate.utils import convert_to_fp32
from accelerate.utils.operations import ConvertOutputsToFp32
from torch import Tensor, nn

NARROW = (torch.float16, torch.bfloat16)


def float32_when_read(output: Any) -> Any:
    """Return a model's output in float32.

    That of a transformers model (a ``ModelOutput``) casts each of its values when it is read; any
    other is cast at once, and so are all within code that is compiled.
    """
    transformers = sys.modules.get("transformers.utils")
    if transformers is None or torch.compiler.is_compiling():
        return convert_to_fp32(output)
    if not isinstance(output, transformers.ModelOutput):
        return convert_to_fp32(output)

    if not isinstance(output, CastWhenRead):
        kind: Any = type(output)
        output.__class__ = _casting(kind)
    return output


def cast_when_read(model: nn.Module) -> None:
    """Let a model that Accelerate has prepared cast its outputs when they are read.

    Accelerate 1.15 casts them in a callable that it puts around ``model.forward``, and says there
    where it is. Nothing changes for a model without one (full precision).
    """
    converter = getattr(model.forward, "__wrapped__", None)
    if type(converter) is ConvertOutputsToFp32:
        converter.__class__ = LateConverter


class LateConverter(ConvertOutputsToFp32):  # type: ignore[misc]
    """Accelerate's callable around ``model.forward``, which casts outputs when they are read."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return float32_when_read(self.model_forward(*args, **kwargs))


class CastWhenRead:
    """What is added to the class of an output: each value is cast to float32 when it is read.

    A ``ModelOutput`` is a dictionary, and has its values as attributes as well.
    """

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name in _names(self):
            return _read(self, name)
        return super().__getattribute__(name)

    def __getitem__(self: Any, key: Any) -> Any:
        if isinstance(key, str):
            return _read(self, key)
        return self.to_tuple()[key]

    def get(self, key: str, default: Any = None) -> Any:
        return _read(self, key) if key in _names(self) else default

    def items(self) -> list[tuple[str, Any]]:
        return [(name, _read(self, name)) for name in _names(self)]

    def values(self) -> list[Any]:
        return [_read(self, name) for name in _names(self)]

    def __reduce__(self) -> Any:
        """Pickle and copy it as an object of the class that the model returned."""
        self.values()
        found: Any = super().__reduce__()
        return (type(self).__mro__[2], *found[1:])


@cache
def _casting(kind: type) -> type:
    """Return the class of outputs of ``kind`` whose values are cast when they are read."""
    return type(kind.__name__, (CastWhenRead, kind), {"__module__": kind.__module__})


def _names(output: Any) -> list[str]:
    """Return the names of the values of an output."""
    return list(dict.keys(output))


def _read(output: Any, name: str) -> Any:
    """Return a value of an output in float32."""
    value = dict.__getitem__(output, name)
    if not _is_narrow(value):
        return value

    cast = convert_to_fp32(value)
    # What was cast without gradients must not be what the loss is computed from later.
    has_gradient = not isinstance(value, Tensor) or value.requires_grad
    if torch.is_grad_enabled() or not has_gradient:
        output[name] = cast
    return cast


def _is_narrow(value: object) -> bool:
    """Return whether a value is in 16 bits, or holds a tensor that is."""
    if isinstance(value, Tensor):
        return value.dtype in NARROW
    if isinstance(value, Mapping):
        return any(_is_narrow(part) for part in value.values())
    if isinstance(value, list | tuple):
        return any(_is_narrow(part) for part in value)
    return False
