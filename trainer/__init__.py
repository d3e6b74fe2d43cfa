"""samecurve: one training script, any strategy, numbers you can trust.

A public name is imported at the first use, so that a mistake in a config is reported before torch
is loaded, which takes seconds. The names are those of ``__init__.pyi``, which type checkers read.
"""

import importlib
import re
from pathlib import Path
from typing import Any

_STUB = Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_MODULES = {name: module for module, name in re.findall(r"from \.(\S+) import (\w+)", _STUB)}
__all__ = sorted(_MODULES)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_MODULES[name]}", __name__)
    return getattr(module, name)
