"""State of tasks and callbacks: JSON with tensors in it, kept apart so that both are plain files.

In the JSON a tensor stands as ``{"$tensor": [name, shape]}`` and a number that JSON lacks as ``{"$number": "inf"}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from ..tensorfile import can_hold


def encode(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """``value`` as JSON; its tensors go to ``tensors``, flat and on the CPU, under names that begin with ``path``.

    Raises:
        CheckpointError: something that is neither JSON nor a tensor.
    """
    if isinstance(value, Tensor) and can_hold(value.dtype):
        tensors[path] = value.detach().to("cpu", copy=True).reshape(-1)
        return {"$tensor": [path, list(value.shape)]}
    if isinstance(value, Mapping) and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: encode(item, tensors, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item, tensors, f"{path}.{number}") for number, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"$number": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"{path}: a {type(value).__name__} is neither JSON nor a tensor, and cannot be saved")


def decode(value: Any, tensor_of: Callable[[str], Tensor]) -> Any:
    """What was encoded; tuples come back as lists."""
    if isinstance(value, list):
        return [decode(item, tensor_of) for item in value]
    if not isinstance(value, dict):
        return value
    if "$number" in value:
        return float(value["$number"])
    if "$tensor" in value:
        name, shape = value["$tensor"]
        return tensor_of(name).reshape(shape)
    return {key: decode(item, tensor_of) for key, item in value.items()}
