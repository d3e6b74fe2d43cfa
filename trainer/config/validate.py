"""Plain data held against annotations: each mistake is one ``Problem`` with its origin and the
nearest match.

Nothing is converted silently, except that a whole number serves as a ``float`` and a list as a
``tuple``. The annotations that are understood stand in ``annotations.py``.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, TypeVar

from ..errors import ConfigError, Origin, Problem, Sourced
from ..text import did_you_mean, nearest
from .annotations import (
    About,
    base_of,
    is_a,
    is_number,
    matched,
    misfit,
    plain,
    union_members,
    unpacked,
)
from .documents import Key
from .paths import not_local

S = TypeVar("S")
_NOTHING = About()


class Validator:
    """Collects in ``problems`` what is wrong, in ``notices`` what to know, in ``meant`` what
    unknown keys stand for.

    Args:
        origin: the origin of a key, or the one source of all keys.
        aliases: by dotted key, what other tools call a key: no second name for it, but the way to
            answer with the right one, or with a sentence where there is none.
    """

    def __init__(
        self,
        origin: Callable[[Key], Origin] | str = "",
        aliases: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        source = origin
        self.origin = (
            (lambda key: Origin(source, key=".".join(key))) if isinstance(source, str) else source
        )
        self.aliases = aliases
        self.problems: list[Problem] = []
        self.notices: list[str] = []
        self.meant: set[Key] = set()

    def settings(self, cls: type, values: Mapping[str, Any], prefix: Key = ()) -> dict[str, Any]:
        """Return those of ``values`` that fit the fields of ``cls``."""
        known = annotations_of(cls)
        fields = {field.name: field for field in dataclasses.fields(cls)}
        fitting = {}
        for name, value in values.items():
            key = (*prefix, str(name))
            if name not in known:
                self.unknown(Sourced(value, self.origin(key)), known, key)
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
        """Record a problem for each field of ``cls`` that has no default, is not ``given`` and was
        not misspelt.
        """
        for field in dataclasses.fields(cls):
            required = field.init and default_of(field) is dataclasses.MISSING
            key = (*prefix, field.name)
            if required and field.name not in given and key not in self.meant:
                text = unpacked(annotations_of(cls)[field.name])[1].help
                self.record(key, f"is required: {text}" if text else "is required")

    def build(self, cls: type[S], values: Mapping[str, Any], prefix: Key = ()) -> S | None:
        """Return ``cls(**values)``; None where there are problems. A ValueError of the class itself
        is one of them.
        """
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
            self.record(prefix, str(error))
        return None

    def read(self, annotation: Any, found: Sourced[Any] | None) -> Any:
        """Return one value as it is meant; None where there is none, and where it does not fit."""
        if found is None:
            return None
        alone = Validator(lambda key: found.origin)
        value = alone._value(annotation, found.value, ())
        for problem in alone.problems:
            self.refuse(found, problem.rule)
        return None if alone.problems else value

    def refuse(self, found: Sourced[Any], rule: str) -> None:
        """Record a problem; the first of a value is enough."""
        if all(problem.origin != found.origin for problem in self.problems):
            self.problems.append(found.problem(rule))

    def notice(self, found: Sourced[Any], text: str) -> None:
        self.notices.append(f"{found.origin.place}: {found.origin.key}: {text}")

    def idle(self, found: Sequence[Sourced[Any]], text: str) -> None:
        """Note in one line, at the first of them, the keys of one section that change nothing, and
        why.
        """
        if found:
            names = ", ".join(entry.origin.key.rpartition(".")[2] for entry in found)
            self.notices.append(f"{found[0].origin.place}: {text}: {names}")

    def unknown(
        self,
        found: Sourced[Any],
        known: Collection[str],
        key: Key,
        hint: str = "",
        *,
        owner: str = "",
    ) -> None:
        """Record an unknown key with the ``hint``, else with the key that it misspells or that is
        ours for it.

        Args:
            owner: the file whose documentation lists its keys, such as ``DeepSpeed's JSON``; else
                ``--help`` does.
        """
        *prefix, name = key
        alias = self.aliases.get(".".join(key), "")
        sentence = " " in alias
        meant = alias or nearest(name, known)
        if hint or sentence:
            rule = hint or alias
        elif meant:
            self.meant.add((*prefix, meant))
            rule = f"did you mean {meant!r}?"
        elif not known:
            rule = "there are no settings here"
        elif owner and len(known) > 12:
            rule = f"{owner} has none of this name; remove it"
        else:
            rule = (
                did_you_mean(name, known) if prefix or len(known) <= 12 else "--help lists all keys"
            )
        self.problems.append(found.problem(f"unknown key; {rule}"))

    def record(self, key: Key, rule: str, value: object = None) -> None:
        """Record a problem of a key, whose origin is looked up."""
        self.problems.append(Problem(origin=self.origin(key), rule=rule, value=value))

    def _value(self, annotation: Any, value: Any, key: Key, outer: About = _NOTHING) -> Any:
        annotation, about = unpacked(annotation)
        limits = outer if about == _NOTHING else about
        members = union_members(annotation)
        value, member = matched(members, value, any_case=about.any_case)
        if member is None:
            return self.record(key, misfit(members, value, about.wanted), value)
        if member is Any and isinstance(value, list | dict):
            member = type(value)
        base, args = base_of(member), typing.get_args(member)
        if is_number(value):
            if rule := limits.broken_by(value):
                return self.record(key, rule, value)
            return float(value) if member is float else value
        names_path = limits.path or is_a(base, PurePath)
        if names_path and isinstance(value, str) and not_local(value):
            return self.record(key, not_local(value), value)
        if base in (list, set, frozenset):
            done = [
                self._value((*args, Any)[0], item, (*key, str(at)), limits)
                for at, item in enumerate(value)
            ]
            try:
                return base(done)
            except TypeError:
                return self.record(key, "must be a list of single values", value)
        if base is tuple:
            items: Any = (
                [args[0]] * len(value) if args[1:] == (...,) else args or [Any] * len(value)
            )
            if len(items) != len(value):
                return self.record(key, f"must be a list of {len(items)} values", value)
            pairs = enumerate(zip(items, value, strict=True))
            return tuple(
                self._value(item, got, (*key, str(at)), limits) for at, (item, got) in pairs
            )
        if is_a(base, enum.Enum):
            return base[value]
        if is_a(base, PurePath):
            return base(os.path.expanduser(value))
        if base is dict:
            if unnamed := [name for name in value if not isinstance(name, str)]:
                return self.record(key, "keys must be text; put it in quotes", unnamed[0])
            item = (*args, Any, Any)[1]
            return {
                name: self._value(item, got, (*key, name), limits) for name, got in value.items()
            }
        return (
            self.build(base, value, key)
            if dataclasses.is_dataclass(member) and is_a(member, object)
            else value
        )


@functools.cache
def annotations_of(cls: type) -> dict[str, Any]:
    """Return the annotation of each field that can be set, with its ``About``."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        rule = f"annotations must exist at run time, outside of TYPE_CHECKING: {error}"
        raise ConfigError(
            Problem(origin=Origin(f"{cls.__module__}:{cls.__qualname__}"), rule=rule)
        ) from None
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field, ``MISSING`` where it has none."""
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()
