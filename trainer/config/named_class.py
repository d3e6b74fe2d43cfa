"""Finding a class that a config names: ``module:Class``."""

from __future__ import annotations

import importlib
import re
import traceback
from typing import TypeVar

from ..errors import Origin
from ..text import did_you_mean, told

T = TypeVar("T")


def find_class(named: str, base: type[T], origin: Origin) -> type[T]:
    """Import ``module:Class`` or ``module.Class``, a subclass of ``base``, or raise ConfigError."""
    module_name, _, class_name = named.replace(":", ".").rpartition(".")
    try:
        check_name(f"{module_name}:{class_name}")
        module = importlib.import_module(module_name)
    except Exception as error:  # of the user's code
        raise origin.error(f"cannot be imported: {_located(error)}", named) from None

    # A package that imports lazily holds a class only after it is asked for.
    values = {**vars(module), class_name: getattr(module, class_name, None)}
    found = {
        name: value
        for name, value in values.items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    }
    if class_name in found:
        return found[class_name]
    # A folder is a module without a file. The run of a task often has the task's name.
    place = getattr(module, "__file__", None) or "the folder of this name"
    rule = f"{place} has no {base.__name__} {class_name!r}; {did_you_mean(class_name, found)}"
    raise origin.error(rule, named)


def check_name(text: str) -> str:
    """Return the text ``module:Class``. Raise ``ValueError`` for another text."""
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text):
        raise ValueError("must be module:Class, such as digits_cnn:DigitsCNN")
    return text


def _located(error: Exception) -> str:
    """Return an error in a line, with the line of the module that raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    modules = [f"{frame.filename}:{frame.lineno}" for frame in frames if frame.name == "<module>"]
    return ": ".join([*modules[-1:], told(error)])
