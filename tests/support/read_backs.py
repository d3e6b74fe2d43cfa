"""Counts the numbers that are read back from tensors one by one: on a GPU each is a wait."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class ReadBacks(TorchDispatchMode):
    """Counts ``item()``, ``bool()`` and the like within a block; ``tolist()`` is not one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default:
            self.count += 1
        return function(*args, **(kwargs or {}))
