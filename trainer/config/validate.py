"""Settings read from plain data; each mistake is one ``Problem`` with its origin and nearest match.

pydantic checks types and limits (``annotations.py``, ``type_errors.py``). Here are the fields of a
dataclass: which keys are unknown, which are missing, and where each was set.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ..errors import ConfigError, Origin, Problem, Sourced
from ..text import did_you_mean, nearest
from .annotations import type_adapter
from .documents import Key
from .plain import plain
from .type_errors import WrongType, problems_of
from .typed import read_typed, typed_keys

S = TypeVar("S")


class Validator:
    """A collector of what is wrong with settings, in ``problems``, and of ``notices``.

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
        if isinstance(origin, str):
            source = origin
            self.origin: Callable[[Key], Origin] = lambda key: Origin(source, key=".".join(key))
        else:
            self.origin = origin
        self.aliases = aliases
        self.problems: list[Problem] = []
        self.notices: list[str] = []
        self.misspelt: set[Key] = set()  # the right keys of those that were misspelt

    def settings(self, cls: type, values: Mapping[str, Any], prefix: Key = ()) -> dict[str, Any]:
        """Return those of ``values`` that fit the fields of ``cls``."""
        known = annotations_of(cls)
        defaults = defaults_of(cls)
        fitting = {}
        for name, value in values.items():
            key = (*prefix, str(name))
            if name not in known:
                self.unknown(Sourced(value, self.origin(key)), known, key)
                continue

            # A default may have a type that no file can give, and be beyond the limits.
            if name in defaults and repr(value) == repr(plain(defaults[name])):
                fitting[name] = defaults[name]
                continue

            problems = len(self.problems)
            fitting_value = self._checked(_adapter_of(cls, name), value, key)
            if len(self.problems) == problems:
                fitting[name] = fitting_value
        return fitting

    def missing(self, cls: type, given: Collection[str], prefix: Key = ()) -> None:
        """Record a problem for each field without a default that is neither given nor misspelt."""
        defaults = defaults_of(cls)
        for name, annotation in annotations_of(cls).items():
            key = (*prefix, name)
            if name in defaults or name in given or key in self.misspelt:
                continue
            help_text = description_of(annotation)
            self.record(key, f"is required: {help_text}" if help_text else "is required")

    def build(self, cls: type[S], values: Mapping[str, Any], prefix: Key = ()) -> S | None:
        """Return ``cls(**values)``, or None where there are problems.

        A ValueError that the class itself raises is one of them.
        """
        problems = len(self.problems)
        fitting = self.settings(cls, values, prefix)
        self.missing(cls, values, prefix)
        if len(self.problems) > problems:
            return None

        try:
            return cls(**fitting)
        except ConfigError as error:
            self.problems.extend(error.problems)
        except ValueError as error:
            self.record(prefix, str(error))
        return None

    def read(self, annotation: Any, found: Sourced[Any] | None) -> Any:
        """Return a value that fits an annotation; None where there is none or it does not fit."""
        if found is None:
            return None
        try:
            return type_adapter(annotation, build_nested).validate_python(found.value)
        except ValidationError as error:
            self.refuse(found, problems_of(error, found.value)[0].rule)
            return None

    def refuse(self, found: Sourced[Any], rule: str) -> None:
        """Record a problem; the first of a value is enough."""
        if all(problem.origin != found.origin for problem in self.problems):
            self.problems.append(found.problem(rule))

    def notice(self, found: Sourced[Any], text: str) -> None:
        """Note what to know about a value."""
        self.notices.append(f"{found.origin.place}: {found.origin.key}: {text}")

    def idle(self, found: Sequence[Sourced[Any]], text: str) -> None:
        """Note, in one line, why some keys of a section change nothing."""
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
        """Record an unknown key, with the hint or else the key that it misspells.

        Args:
            owner: the file whose documentation lists its keys, such as ``DeepSpeed's JSON``; else
                ``--help`` does.
        """
        *prefix, name = key
        alias = self.aliases.get(".".join(key), "")
        is_sentence = " " in alias
        right = alias or nearest(name, known)

        if hint:
            rule = hint
        elif is_sentence:
            rule = alias
        elif right:
            self.misspelt.add((*prefix, right))
            rule = f"did you mean {right!r}?"
        elif not known:
            rule = "there are no settings here"
        elif owner and len(known) > 12:
            rule = f"{owner} has none of this name; remove it"
        elif prefix or len(known) <= 12:
            rule = did_you_mean(name, known)
        else:
            rule = "--help lists all keys"
        self.problems.append(found.problem(f"unknown key; {rule}"))

    def record(self, key: Key, rule: str, value: object = None) -> None:
        """Record a problem of a key, whose origin is looked up."""
        self.problems.append(Problem(origin=self.origin(key), rule=rule, value=value))

    def _checked(self, adapter: TypeAdapter[Any], value: Any, key: Key) -> Any:
        """Return a value as pydantic reads it; record what is wrong with it.

        What was typed is read as YAML; what does not fit then, but does as text, stays text.
        """
        result, problems = _validated(adapter, read_typed(value))

        wrong = _misfits(list(typed_keys(value)), problems)
        if wrong:
            _, problems_as_text = _validated(adapter, read_typed(value, wrong))
            still_wrong = _misfits(wrong, problems_as_text)
            as_text = [typed_key for typed_key in wrong if typed_key not in still_wrong]
            result, problems = _validated(adapter, read_typed(value, as_text))

        for problem in problems:
            below = problem.key.split(".") if problem.key else []
            origin = self.origin((*key, *below))
            self.problems.append(dataclasses.replace(problem, origin=origin))
        return result


def build_nested(cls: type, values: Mapping[str, Any]) -> Any:
    """Return the settings of a nested dataclass.

    Raises:
        ConfigError: what is wrong with them, with keys relative to ``values``.
    """
    check = Validator()
    settings = check.build(cls, values)
    if check.problems:
        raise ConfigError(check.problems)
    return settings


def _validated(adapter: TypeAdapter[Any], value: Any) -> tuple[Any, list[Problem]]:
    try:
        return adapter.validate_python(value), []
    except ValidationError as error:
        return None, problems_of(error, value)


def _misfits(keys: Sequence[Key], problems: Sequence[Problem]) -> list[Key]:
    """Return those of ``keys`` whose value itself has the wrong type, and not a part of it."""
    wrong = {problem.key for problem in problems if isinstance(problem, WrongType)}
    return [key for key in keys if ".".join(key) in wrong]


@functools.cache
def annotations_of(cls: type) -> dict[str, Any]:
    """Return the annotation of each field that can be set, ``Annotated`` included."""
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        rule = f"annotations must exist at run time, outside of TYPE_CHECKING: {error}"
        raise ConfigError(
            Problem(origin=Origin(f"{cls.__module__}:{cls.__qualname__}"), rule=rule)
        ) from None
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


@functools.cache
def _adapter_of(cls: type, name: str) -> TypeAdapter[Any]:
    return type_adapter(annotations_of(cls)[name], build_nested)


def defaults_of(cls: type) -> dict[str, Any]:
    """Return the default of each field that has one."""
    defaults = {}
    for field in dataclasses.fields(cls):
        if field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
    return defaults


def description_of(annotation: Any) -> str:
    """Return the ``description`` of ``Annotated[..., Field(description=...)]``; "" without one."""
    for note in getattr(annotation, "__metadata__", ()):
        description = getattr(note, "description", None)
        if description:
            return str(description)
    return ""
