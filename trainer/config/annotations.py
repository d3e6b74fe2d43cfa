"""Annotations of settings, as pydantic reads them from the JSON form of a file.

Any annotation of pydantic's may be used. Text never becomes a number, and a number never a bool. A
whole number serves as a ``float``, a list as a tuple or a set, and a mapping as a dataclass.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from typing import Any

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import NotRequired, Required, TypedDict

STRICT = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid", arbitrary_types_allowed=True)


@functools.cache
def annotations_of(cls: Any) -> dict[str, Any]:
    """Return the annotation of each argument that a class takes by name."""
    described = cls if is_made_from_fields(cls) else cls.__init__
    hints = typing.get_type_hints(described, include_extras=True)
    return {
        name: hints.get(name, Any)
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }


def is_made_from_fields(cls: Any) -> bool:
    """Return whether a class is a dataclass whose ``__init__`` is made from the fields."""
    owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
    return "__dataclass_fields__" in vars(owner)


@functools.cache
def form_of(cls: Any) -> TypeAdapter[Any]:
    """Return pydantic's validator of the arguments of a class, as a mapping from their names."""
    fields = {}
    for name, annotation in annotations_of(cls).items():
        default = inspect.signature(cls).parameters[name].default
        presence: Any = Required if default is inspect.Parameter.empty else NotRequired
        fields[name] = presence[annotation]
    make: Any = TypedDict
    form = make(cls.__name__, fields)
    form.__pydantic_config__ = STRICT
    return TypeAdapter(form)


def defaults_of(cls: Any) -> dict[str, Any]:
    """Return the defaults of a dataclass's fields, by name."""
    defaults = {}
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        if not field.init:
            continue
        if field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
    return defaults
