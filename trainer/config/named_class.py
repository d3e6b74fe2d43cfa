"""Finding a class that a config names: ``module:Class``."""

from __future__ import annotations

import importlib
import re
import traceback
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
                raise ModuleNotFoundError(f"No module named {module_name!r}", name=module_name)
        except Exception as error:  # of the user's code
            rule = f"cannot be imported: {_told(error)}"
            missing = getattr(error, "name", None)
            if isinstance(error, ModuleNotFoundError) and module_name.startswith(str(missing)):
                rule = f"{error} beside the config or the script, nor installed"
        else:
            cls = getattr(module, class_name, None)
            if isinstance(cls, type) and issubclass(cls, base):
                return cls
            names = [
                name
                for name, value in vars(module).items()
                if isinstance(value, type) and issubclass(value, base) and value is not base
            ]
            rule = f"the module has no {class_name!r}; {did_you_mean(class_name, names)}"
            if cls is not None:
                package = base.__module__.partition(".")[0]
                rule = f"does not name a subclass of {package}.{base.__name__}"
    raise origin.error(rule, named)


def check_name(text: str) -> str:
    """Return the text ``module:Class``. Raise ``ValueError`` for another text."""
    meant = re.sub(r"(\.py)?[.:]+(?=\w+$)", ":", text.rpartition("/")[2])
    is_name = re.fullmatch(CLASS, meant)
    if is_name and meant == text:
        return text
    hint = f"did you mean {meant!r}?" if is_name else "such as digits_cnn:DigitsCNN"
    raise ValueError(f"must be module:Class; {hint}")


def _told(error: Exception) -> str:
    """Return an error in a line, with the line of the module that raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    modules = [f"{frame.filename}:{frame.lineno}" for frame in frames if frame.name == "<module>"]
    return ": ".join([*modules[-1:], type(error).__name__, str(error).partition("\n")[0]])
