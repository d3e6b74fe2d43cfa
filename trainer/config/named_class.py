"""Finding a class that a config names: ``module:Class``."""

from __future__ import annotations

import importlib
import re
from typing import TypeVar

from ..errors import Origin
from ..text import did_you_mean

T = TypeVar("T")
CLASS = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


def find_class(named: str, base: type[T], origin: Origin) -> type[T]:
    """Import ``module:Class`` or ``module.Class``, a subclass of ``base``.

    Args:
        named: the text in the config.
        origin: of the text, for errors.

    Raises:
        ConfigError: there is no such module, or the module has no such class.
    """
    module_name, _, class_name = named.replace(":", ".").rpartition(".")
    if re.fullmatch(CLASS, f"{module_name}:{class_name}") is None:
        rule = "must be module:Class, such as mymodule:LogImages"
    else:
        try:
            module = importlib.import_module(module_name)
            # A folder is a module without a file. The run of a task often has the task's name.
            if module.__spec__ and module.__spec__.origin is None:
                raise ModuleNotFoundError(f"No module named {module_name!r}")
        except ModuleNotFoundError as error:
            rule = f"{error} beside the config or the script, nor installed"
        else:
            cls = getattr(module, class_name, None)
            if isinstance(cls, type) and issubclass(cls, base):
                return cls
            names = [name for name in dir(module) if not name.startswith("_")]
            rule = f"the module has no {class_name!r}; {did_you_mean(class_name, names)}"
            if cls is not None:
                package = base.__module__.partition(".")[0]
                rule = f"does not name a subclass of {package}.{base.__name__}"
    raise origin.error(rule, named)
