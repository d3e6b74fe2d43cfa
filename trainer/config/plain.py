"""Values as files hold them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any


def plain(value: object, *, compared: bool = False) -> Any:
    """Return ``value`` as text, finite numbers, lists and mappings, which JSON and YAML keep equal.

    Members of an ``Enum`` become their names. Paths, and whatever else has no form in a file,
    become text.

    Args:
        compared: return what runs are compared by instead. It is the same in every process, and as
            checkpoints of older runs hold it: members of an ``Enum`` by value, infinite numbers as
            they are, objects by their type.
    """
    nested = functools.partial(plain, compared=compared)

    if isinstance(value, enum.Enum):
        return nested(value.value) if compared else value.name
    if value is None or isinstance(value, bool | int | float):
        return _plain_number(value, compared)
    if isinstance(value, str | PurePath):
        return str(value)

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init or compared]
        return {name: nested(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        return {str(key): nested(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nested(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(nested, value), key=str)

    if not compared:
        return repr(value)
    return _name_of(value)  # its text would hold an address


def _plain_number(value: float | None, compared: bool) -> Any:
    """Return a number without a class of its own, such as numpy's; true, false and null as well."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if compared:
        return value
    return float(value) if math.isfinite(value) else repr(value)


def _name_of(value: object) -> str:
    """Return the name of a function or class, or of the class of any other object."""
    name = getattr(value, "__qualname__", None)
    if name:
        return f"{value.__module__}.{name}"
    return type(value).__qualname__
