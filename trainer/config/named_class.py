"""Finding a class that a config names: ``module:Class``."""

from __future__ import annotations

import importlib
import re
from typing import TypeVar

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

    def problem(rule: str) -> ConfigError:
        return ConfigError(Problem(origin=origin, value=named, rule=rule))

    if re.fullmatch(CLASS, named) is None:
        raise problem("must be module:Class, such as mymodule:LogImages")
    module_name, _, class_name = named.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module was found, and imports another module that was not
        rule = f"no module {error.name!r} beside the config or the script, nor installed"
        raise problem(rule) from None

    cls = getattr(module, class_name, None)
    if cls is None:
        place = getattr(module, "__file__", "built into Python")
        names = [name for name in dir(module) if not name.startswith("_")]
        raise problem(f"{place} has no {class_name!r}; {did_you_mean(class_name, names)}")
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise problem(f"does not name a subclass of trainer.{base.__name__}")
    return cls
