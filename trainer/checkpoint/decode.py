"""The state of tasks and callbacks, read back from what ``codec.py`` has made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def decode(value: Any, tensor_of: Callable[[str], Tensor] | None = None) -> Any:
    """Return what was encoded.

    Args:
        tensor_of: reads a tensor by its name. None if nothing with tensors was encoded.
    """
    if isinstance(value, list):
        return [decode(item, tensor_of) for item in value]
    if not isinstance(value, dict):
        return value

    if "$number" in value:
        return float(value["$number"])
    if "$tuple" in value:
        return tuple(decode(item, tensor_of) for item in value["$tuple"])
    if "$tensor" in value:
        assert tensor_of is not None, "nothing with tensors was encoded here"
        name, shape = value["$tensor"]
        return tensor_of(name).reshape(shape)
    return {key: decode(item, tensor_of) for key, item in value.items()}
