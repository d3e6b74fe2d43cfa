"""Annotations of settings, as pydantic checks them.

A setting may be annotated with ``bool``, ``int``, ``float``, ``str``, ``Literal``, an ``Enum`` (a
file gives its name), a ``Path``, ``Any``, ``list[...]``, ``tuple[...]``, ``set[...]``,
``frozenset[...]``, ``dict[str, ...]``, their abstract forms (``Sequence[...]``, ``Mapping[str,
...]``), a dataclass, or a union of these or with ``None``. Limits are pydantic's: ``Annotated[int,
Field(ge=1)]``.

``strict_type`` translates such an annotation into one that pydantic reads as files are meant: no
text becomes a number, no number a truth value; but a whole number serves as a ``float``, and a list
as a tuple or a set.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal, Union

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter

from ..errors import ConfigError, Origin, Problem
from .paths import not_local

Build = Callable[[type, Mapping[str, Any]], Any]

_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def _local_path(text: str) -> str:
    rule = not_local(text)
    if rule:
        raise ValueError(rule)
    return text


LocalPath = Annotated[str, AfterValidator(_local_path)]
"""The annotation of text that names a path of this machine's file system."""


@dataclass(frozen=True, kw_only=True)
class About:
    """Limits of a key of a launch file, whose types are read from tables.

    Args:
        minimum, above, maximum, below: limits of a number; above and below are exclusive.
        whole: the number is whole, also where it is written as 2e8.
        any_case: choices may be written in any case, and ``true`` and ``false`` in quotes.
    """

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    whole: bool = False
    any_case: bool = False

    def constraints(self, annotation: Any) -> Iterator[Any]:
        """Yield what pydantic takes for these limits of an annotation."""
        yield Field(ge=self.minimum, gt=self.above, le=self.maximum, lt=self.below)
        if self.whole:
            yield AfterValidator(_whole)
        if self.any_case:
            yield BeforeValidator(functools.partial(_in_any_case, annotation))


# What files give where code names only what a value can do.
_IN_FILES: dict[Any, type] = {Sequence: list, Collection: list, Mapping: dict}


def type_adapter(annotation: Any, build: Build) -> TypeAdapter[Any]:
    """Return pydantic's validator of an annotation.

    Args:
        build: makes an object of a dataclass from the mapping that a file has in its place. It
            raises ConfigError, with keys relative to this mapping.
    """
    return TypeAdapter(strict_type(annotation, build), config=_STRICT)


def strict_type(annotation: Any, build: Build) -> Any:
    """Return the annotation that lets pydantic read an annotation as this module says."""
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)

    if origin is Annotated:
        return _annotated(annotation, build)
    if origin in (Union, types.UnionType):
        return _union(arguments, build)
    if origin is Literal:
        return Annotated[annotation, BeforeValidator(functools.partial(_same_type, arguments))]
    if annotation in (bool, str, float, None, type(None)):
        return annotation
    if annotation is int:
        return Annotated[int, AfterValidator(_finite)]
    if annotation is Any:
        return Annotated[Any, AfterValidator(_finite_inside)]

    kind = _IN_FILES.get(origin or annotation, origin or annotation)
    if kind in (dict, list, tuple, set, frozenset):
        return _collection(kind, arguments, build)
    if isinstance(kind, type):
        return _class(kind, build)
    return _only_in_code(annotation)


def _annotated(annotation: Any, build: Build) -> Any:
    inner, *notes = typing.get_args(annotation)
    metadata: list[Any] = []
    for note in notes:
        if isinstance(note, About):
            metadata.extend(note.constraints(inner))
        else:
            metadata.append(note)
    return Annotated[(strict_type(inner, build), *metadata)]


def _union(members: tuple[Any, ...], build: Build) -> Any:
    """Return a union: a value is of the first type that it fits."""
    strict_members = [strict_type(member, build) for member in members]
    union = functools.reduce(operator.or_, strict_members)
    if len(members) == 2 and type(None) in members:
        return union
    return Annotated[union, Field(union_mode="left_to_right")]


def _collection(kind: type, arguments: tuple[Any, ...], build: Build) -> Any:
    """Return the type of a mapping, or of a list, tuple or set, which are lists in a file."""
    if kind is dict:
        value = strict_type(arguments[1] if arguments else Any, build)
        return dict.__class_getitem__((str, value))
    if kind is tuple and arguments and arguments[-1] is not ...:
        items = tuple(strict_type(argument, build) for argument in arguments)
        tuple_of_items: Any = tuple.__class_getitem__(items)
        length = BeforeValidator(functools.partial(_tuple_of, len(items)))
        return Annotated[tuple_of_items, length]

    item = strict_type(arguments[0] if arguments else Any, build)
    list_of_items: Any = list.__class_getitem__(item)
    convert = AfterValidator(functools.partial(_converted, kind))
    return Annotated[list_of_items, BeforeValidator(_list_of), convert]


def _class(kind: type, build: Build) -> Any:
    """Return the type of a path, of a choice by name, or of nested settings."""
    if issubclass(kind, PurePath):
        make_path = AfterValidator(lambda text: kind(os.path.expanduser(text)))
        return Annotated[LocalPath, make_path]
    if issubclass(kind, enum.Enum):
        names = tuple(kind.__members__)
        return Annotated[Literal[names], AfterValidator(lambda name: kind[name])]
    if dataclasses.is_dataclass(kind):
        make = AfterValidator(functools.partial(build, kind))
        return Annotated[dict[Any, Any], make]
    return _only_in_code(kind)


def _only_in_code(annotation: Any) -> Any:
    def refuse(value: object) -> object:
        raise ValueError(f"must be set in code: a file cannot give the type {annotation}")

    return Annotated[Any, BeforeValidator(refuse)]


def choices_of(annotation: Any) -> list[Any]:
    """Return all choices of the ``Literal`` types in an annotation."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal:
        return list(arguments)
    return [choice for argument in arguments for choice in choices_of(argument)]


# Validators


def _finite(number: float) -> float:
    # A comparison and not math.isfinite, which fails for whole numbers too large for a float.
    if not abs(number) <= sys.float_info.max:
        raise ValueError("must be a finite number")
    return number


def _whole(number: float) -> float:
    if not number.is_integer():
        raise ValueError("must be a whole number")
    return number


def _same_type(choices: tuple[Any, ...], value: object) -> object:
    # To pydantic true and 1.0 are the choice 1.
    if value in choices and not any(
        value == choice and type(value) is type(choice) for choice in choices
    ):
        raise ValueError(f"must be one of {', '.join(map(repr, choices))}")
    return value


def _in_any_case(annotation: Any, value: object) -> object:
    """Return the choice that a text spells in another case."""
    if not isinstance(value, str):
        return value
    spellings: dict[str, Any] = {choice.lower(): choice for choice in choices_of(annotation)}
    if annotation is bool:
        spellings |= {"true": True, "false": False}
    return spellings.get(value.lower(), value)


def _list_of(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _tuple_of(length: int, value: object) -> object:
    if not isinstance(value, list | tuple):
        return value
    if len(value) != length:
        raise ValueError(f"must be a list of {length} values")
    return tuple(value)


def _converted(kind: type, items: list[Any]) -> Any:
    try:
        return kind(items)
    except TypeError:  # a list has no place in a set
        raise ValueError("must be a list of single values") from None


def _finite_inside(value: Any) -> Any:
    """Return a value of any type; raise ConfigError where no file could hold it."""
    problems = list(_not_in_files(value, ()))
    if problems:
        raise ConfigError(problems)
    return value


def _not_in_files(value: object, key: tuple[str, ...]) -> Iterator[Problem]:
    """Yield a problem for each number that is not finite, and each key that is not text."""
    origin = Origin("", key=".".join(key))
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not abs(value) <= sys.float_info.max:
            yield Problem(origin=origin, rule="must be a finite number", value=value)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _not_in_files(item, (*key, str(index)))
    elif isinstance(value, dict):
        for name, item in value.items():
            if isinstance(name, str):
                yield from _not_in_files(item, (*key, name))
            else:
                yield Problem(origin=origin, rule="keys must be text; put it in quotes", value=name)
