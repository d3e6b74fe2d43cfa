"""Finding a class that a config names: ``module:Class``."""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import Any, TypeVar

from ..errors import ConfigError, Origin, Problem
from ..text import did_you_mean

T = TypeVar("T")
CLASS = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


def find_class(named: str, base: type[T], origin: Origin) -> type[T]:
    """Import ``module:Class``, a subclass of ``base``.

    Args:
        named: the text in the config.
        origin: of the text, for errors.

    Raises:
        ConfigError: there is no such module, or no such class in it.
    """

    module_name, _, class_name = named.partition(":")
    cls: Any = None
    if re.fullmatch(CLASS, named) is None:
        rule = "must be module:Class, such as mymodule:LogImages"
    elif (module := _module(module_name)) is None:
        rule = f"no module {module_name!r} beside the config or the script, nor installed"
    elif (cls := getattr(module, class_name, None)) is None:
        names = [name for name in dir(module) if not name.startswith("_")]
        rule = f"the module has no {class_name!r}; {did_you_mean(class_name, names)}"
    elif isinstance(cls, type) and issubclass(cls, base):
        return cls
    else:
        rule = f"does not name a subclass of trainer.{base.__name__}"
    raise ConfigError(Problem(origin=origin, value=named, rule=rule))


def _module(name: str) -> ModuleType | None:
    """Import a module, and return None if there is none of this name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise  # the module was found, and imports another module that was not
        return None
