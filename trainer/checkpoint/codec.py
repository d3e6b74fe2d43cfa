"""The state of tasks and callbacks as JSON and tensors, so that both are written as plain files.

In the JSON a tensor is ``{"$tensor": [name, shape]}``, a tuple ``{"$tuple": [...]}`` and a number
that JSON lacks ``{"$number": "inf"}``. ``contents.py`` has the way back, for a run that resumes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import CheckpointError
from .safetensors_io import CODES


def encode(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """Return the JSON form of a value, and add flat copies of its tensors to ``tensors``.

    The names of the tensors begin with ``path``. Raises ``CheckpointError`` for other objects.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"$number": str(float(value))}
    if isinstance(value, str | int | float | None):
        return value

    if isinstance(value, tuple):
        return {"$tuple": encode([*value], tensors, path)}
    if isinstance(value, list):
        return [encode(item, tensors, f"{path}.{number}") for number, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) and key[:1] != "$" for key in value):
        return {key: encode(item, tensors, f"{path}.{key}") for key, item in value.items()}

    if isinstance(value, Tensor) and value.dtype in CODES:
        tensors[path] = value.detach().to("cpu", copy=True).reshape(-1)
        return {"$tensor": [path, list(value.shape)]}

    raise CheckpointError(
        f"{path}: {value!r:.80} is neither JSON nor a tensor that safetensors holds"
    )
