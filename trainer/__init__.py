"""samecurve: one training script, any strategy, numbers you can trust.

The public names stand in ``__init__.pyi``, once: type checkers read it, and so does this module.
Each is imported at its first use, so that a wrong config is answered before torch is loaded.
"""

import ast
import importlib
import warnings
from pathlib import Path
from typing import Any

_MODULES = {
    alias.name: f".{node.module}"
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = sorted(_MODULES)
# Public names of the release before, which still work with a warning.
_RENAMED = {"prepared": "prepare_once", "run": "run_and_exit"}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(
            f"trainer.{name} is called trainer.{_RENAMED[name]} now",
            DeprecationWarning,
            stacklevel=2,
        )
        name = _RENAMED[name]
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name], __name__), name)
