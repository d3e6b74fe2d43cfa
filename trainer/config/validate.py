"""Plain data held against annotated dataclasses: each mistake is one ``Problem`` with its home and the nearest match.

Nothing is converted silently, except that a whole number serves as a ``float`` and a list as a ``tuple``.
The kinds of value that are understood stand in ``kinds.py``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, TypeVar

from ..errors import ConfigError, Problem
from ..text import did_you_mean, nearest
from .annotations import About, Typed, fits, is_a, is_number, members, misfit, origin_of, plain, read_text, unpacked
from .documents import Key

S = TypeVar("S")
_NOTHING = About()


class Checker:
    """Collects in ``problems`` what is wrong with the values of one source, in ``meant`` what unknown keys stand for.

    Args:
        where: the home of a key.
        aliases: what other tools call a key: no second name for it, but the way to answer with the right one.
    """

    def __init__(self, where: Callable[[Key], str], aliases: Mapping[str, str] = MappingProxyType({})) -> None:
        self.where = where
        self.aliases = aliases
        self.problems: list[Problem] = []
        self.meant: set[Key] = set()

    def settings(self, cls: type, values: Mapping[str, Any], prefix: Key = ()) -> dict[str, Any]:
        """Those of ``values`` that fit the fields of ``cls``."""
        known = annotations_of(cls)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        fitting = {}
        for name, value in values.items():
            key = (*prefix, str(name))
            if name not in known:
                self._unknown(known, value, key)
                continue
            default = default_of(fields[name])
            # A default is as it is, whatever its type and beyond the limits.
            if default is not dataclasses.MISSING and repr(value) == repr(plain(default)):
                fitting[name] = default
                continue
            found = len(self.problems)
            read = self._value(known[name], value, key)
            if len(self.problems) == found:
                fitting[name] = read
        return fitting

    def missing(self, cls: type, given: Collection[str], prefix: Key = ()) -> None:
        """A problem for each field of ``cls`` that has no default, is not ``given`` and was not misspelt."""
        for field in dataclasses.fields(cls):
            required = field.init and default_of(field) is dataclasses.MISSING
            key = (*prefix, field.name)
            if required and field.name not in given and key not in self.meant:
                text = unpacked(annotations_of(cls)[field.name])[1].help
                self._problem(key, f"is required: {text}" if text else "is required")

    def build(self, cls: type[S], values: Mapping[str, Any], prefix: Key = ()) -> S | None:
        """``cls(**values)``; None where there are problems. A ValueError of the class itself is one of them."""
        found = len(self.problems)
        fitting = self.settings(cls, values, prefix)
        self.missing(cls, values, prefix)
        if len(self.problems) > found:
            return None
        try:
            return cls(**fitting)
        except ConfigError as error:
            self.problems.extend(error.problems)
        except ValueError as error:
            self._problem(prefix, str(error))
        return None

    def _problem(self, key: Key, rule: str, value: object = None) -> None:
        self.problems.append(Problem(where=self.where(key), key=".".join(key), rule=rule, value=value))

    def _value(self, annotation: Any, value: Any, key: Key, outer: About = _NOTHING) -> Any:
        annotation, about = unpacked(annotation)
        limits = outer if about == _NOTHING else about
        kinds = members(annotation)
        if isinstance(value, Typed):
            value = read_text(kinds, str(value))
        kind = next((kind for kind in kinds if fits(kind, value)), None)
        if kind is None:
            return self._problem(key, misfit(kinds, value, about.wanted), value)
        if kind is Any and isinstance(value, list | dict):
            kind = type(value)
        origin, args = origin_of(kind), typing.get_args(kind)
        if is_number(value):
            if rule := limits.broken_by(value):
                return self._problem(key, rule, value)
            return float(value) if kind is float else value
        if origin is list:
            return [self._value((*args, Any)[0], item, (*key, str(at)), limits) for at, item in enumerate(value)]
        if origin is tuple:
            items = [args[0]] * len(value) if args[1:] == (...,) else args or [Any] * len(value)
            if len(items) != len(value):
                return self._problem(key, f"must be a list of {len(items)} values", value)
            pairs = enumerate(zip(items, value, strict=True))
            return tuple(self._value(item, got, (*key, str(at)), limits) for at, (item, got) in pairs)
        if origin in (set, frozenset):
            items = [self._value((*args, Any)[0], item, (*key, str(at)), limits) for at, item in enumerate(value)]
            try:
                return origin(items)
            except TypeError:
                return self._problem(key, "must be a list of single values", value)
        if is_a(origin, enum.Enum):
            return origin[value]
        if is_a(origin, PurePath):
            return origin(os.path.expanduser(value))
        if origin is dict:
            if unnamed := [name for name in value if not isinstance(name, str)]:
                return self._problem(key, "keys must be text; put it in quotes", unnamed[0])
            item = (*args, Any, Any)[1]
            return {name: self._value(item, got, (*key, name), limits) for name, got in value.items()}
        return self.build(kind, value, key) if dataclasses.is_dataclass(kind) and isinstance(kind, type) else value

    def _unknown(self, known: Collection[str], value: object, key: Key) -> None:
        """Answer with the key that was misspelt, or with that of ours for another tool's."""
        *prefix, name = key
        meant = self.aliases.get(name) or nearest(name, known)
        if meant:
            self.meant.add((*prefix, meant))
            rule = f"did you mean {meant!r}?"
        elif not known:
            rule = "there are no settings here"
        else:
            rule = did_you_mean(name, known) if prefix or len(known) <= 12 else "--help lists all keys"
        self._problem(key, f"unknown key; {rule}", value)


@functools.cache
def annotations_of(cls: type) -> dict[str, Any]:
    """The annotation of each field that can be set, with its ``About``."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        rule = f"annotations must exist at run time, outside of TYPE_CHECKING: {error}"
        raise ConfigError(Problem(where=f"{cls.__module__}:{cls.__qualname__}", key="", rule=rule)) from None
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, ``MISSING`` where it has none."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()
