"""State of tasks and callbacks: JSON with tensors in it, kept apart so that both are plain files.

In the JSON a tensor stands as ``{"$tensor": [name, shape]}``, a tuple as ``{"$tuple": [...]}`` and
a number that JSON lacks as ``{"$number": "inf"}``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import CheckpointError
from .safetensors_io import can_hold


def encode(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """Return ``value`` as JSON; its tensors go to ``tensors``, flat and on the CPU, by names that
    begin with ``path``.

    Raises:
        CheckpointError: something that is neither JSON nor a tensor.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Tensor) and can_hold(value.dtype):
        tensors[path] = value.detach().to("cpu", copy=True).reshape(-1)
        return {"$tensor": [path, list(value.shape)]}
    if isinstance(value, Mapping) and all(
        isinstance(key, str) and not key.startswith("$") for key in value
    ):
        return {key: encode(item, tensors, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [encode(item, tensors, f"{path}.{number}") for number, item in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, float) and not math.isfinite(value):
        return {"$number": str(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    what = f"a {type(value).__name__}"
    if isinstance(value, Mapping):
        what += f" with the key {next(k for k in value if not isinstance(k, str) or k.startswith('$'))!r}"
    elif isinstance(value, Tensor):
        what += f" of {value.dtype}"
    raise CheckpointError(f"{path}: {what} is neither JSON nor a tensor, and cannot be saved")


def encode_plain(value: Any, path: str) -> Any:
    """Return ``value`` as JSON reads it back, with the text of what JSON does not hold."""
    return encode(json.loads(json.dumps(value, default=str)), {}, path)


def decode(value: Any, tensor_of: Callable[[str], Tensor] | None = None) -> Any:
    """Return what was encoded.

    Args:
        tensor_of: reads a tensor by its name; None where only numbers were encoded.
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
        assert tensor_of is not None, "only numbers were encoded here"
        name, shape = value["$tensor"]
        return tensor_of(name).reshape(shape)
    return {key: decode(item, tensor_of) for key, item in value.items()}
