"""Finding a class that a config names: ``module:Class``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType

from ..errors import ConfigError
from ..text import did_you_mean


def find_class(named: str, problem: Callable[[str], ConfigError]) -> object:
    """Import ``module:Class``.

    Args:
        named: the text in the config.
        problem: returns the error that a rule is broken.

    Raises:
        ConfigError: there is no such module, or no such class in it.
    """
    module_name, _, class_name = named.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module was found; something that it imports was not
        raise problem(
            f"no module {error.name!r} here, beside the config, in the script's folder or installed"
        ) from None

    if not hasattr(module, class_name):
        raise problem(_without_class(module, class_name))
    return getattr(module, class_name)


def _without_class(module: ModuleType, class_name: str) -> str:
    """Return the rule that is broken where a module does not have the class."""
    name = module.__name__
    place = getattr(module, "__file__", None) or "built into Python"
    if name.partition(".")[0] in sys.stdlib_module_names:
        return f"the module {name} is Python's own ({place}); give your file another name"

    known = _classes_of(module)
    hint = did_you_mean(class_name, known) if known else f"it is {place}, and defines no class"
    return f"{name} has no {class_name!r}; {hint}"


def _classes_of(module: ModuleType) -> list[str]:
    """Return the names of what a config may mean in a module."""
    # A package that imports lazily lists its names, and holds only those that were used.
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)

    classes = []
    for name, value in vars(module).items():
        is_class = isinstance(value, type)
        if is_class and value.__module__.partition(".")[0] not in sys.stdlib_module_names:
            classes.append(name)
    return classes
