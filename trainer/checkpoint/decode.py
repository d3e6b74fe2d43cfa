"""The state of tasks and callbacks, decoded from the JSON and tensors of ``codec.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def decode(value: Any, tensor_of: Callable[[str], Tensor] | None = None) -> Any:
    """Return the value that was encoded.

    Args:
        tensor_of: reads a tensor by name. None for a value without tensors.
    """
    if isinstance(value, list):
        return [decode(item, tensor_of) for item in value]
    if not isinstance(value, dict):
        return value

    if "$number" in value:
        return float(value["$number"])
    if "$tuple" in value:
        return tuple(decode(value["$tuple"], tensor_of))
    if "$tensor" in value:
        assert tensor_of is not None, "a value without tensors"
        name, shape = value["$tensor"]
        return tensor_of(name).reshape(shape)
    return {key: decode(item, tensor_of) for key, item in value.items()}
