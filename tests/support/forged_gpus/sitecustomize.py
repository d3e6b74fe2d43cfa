"""Put on PYTHONPATH: every Python then counts FORGED_GPUS devices, unless CUDA_VISIBLE_DEVICES
hides them.

Only the counting is forged: whoever computes on such a device fails.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ForgedGpus:
    """A finder that changes ``torch.cuda`` once it is imported; torch itself is not imported for
    it.
    """

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch.cuda":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_forge(module: ModuleType) -> None:
            load(module)
            vars(module).update(device_count=count, is_available=lambda: count() > 0)

        spec.loader.exec_module = load_and_forge  # type: ignore[method-assign]
        return spec


def count() -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = int(os.environ.get("FORGED_GPUS", "0"))
    return there if visible is None else min(there, len(visible.split(",")) if visible else 0)


sys.meta_path.insert(0, ForgedGpus())  # type: ignore[arg-type]
