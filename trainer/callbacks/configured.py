"""Callbacks that the training config names: found, their settings checked, and made.

    callbacks:
      - mymodule:LogImages
      - mymodule:Thaw: {at: 3, layers: "stem.*"}

The settings are the fields of a dataclass, and of any other class the arguments of its
``__init__``; both are checked against their annotations as a task's settings are.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config.documents import Key
from ..config.load import origin_of
from ..config.named_class import find_class
from ..config.validate import Validator
from ..errors import ConfigError, Origin, Problem
from ..hooks import Callback


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """An item of the list.

    Args:
        place: the key of the class.
        key: the key of its settings.
        named: ``module:Class``.
        settings: of the callback.
    """

    place: Key
    key: Key
    named: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A class that was found, and its settings, which fit."""

    key: Key
    cls: type[Callback]
    settings: Mapping[str, Any]


def configured_callbacks(
    values: Sequence[Any], origins: Mapping[str, Origin] | None = None
) -> list[Callback]:
    """Return the callbacks that ``callbacks`` of a training config names, in its order.

    Args:
        values: of the key.
        origins: of the config's values, by key, for messages.

    Raises:
        ConfigError: everything that is wrong with them, each with its place.
    """
    check = _validator(origins or {})
    made = []
    for found in _found(values, check):
        made.append(_made(found, check))
    if check.problems:
        raise ConfigError(check.problems)
    return [callback for callback in made if callback is not None]


def check_callbacks(values: Sequence[Any], origins: Mapping[str, Origin]) -> None:
    """Raise ``ConfigError`` where a callback could not be made.

    Dataclasses are made for that, as a task is; others are not: their ``__init__`` may do work.
    """
    check = _validator(origins)
    for found in _found(values, check):
        if _is_dataclass(found.cls):
            _made(found, check)
    if check.problems:
        raise ConfigError(check.problems)


def _validator(origins: Mapping[str, Origin]) -> Validator:
    return Validator(lambda key: origin_of(origins, key, "TrainConfig"))


def _found(values: Sequence[Any], check: Validator) -> list[_Found]:
    """Find the classes, and check their settings; problems are recorded."""
    found = []
    for number, value in enumerate(values):
        entry = _entry(value, number, check)
        if entry is None:
            continue

        cls = _find(entry, check)
        if cls is None:
            continue
        settings = _checked(cls, entry, check)
        if settings is not None:
            found.append(_Found(key=entry.key, cls=cls, settings=settings))
    return found


def _entry(value: Any, number: int, check: Validator) -> _Entry | None:
    """Read an item: ``module:Class``, or a mapping from it to the settings."""
    place = ("callbacks", str(number))
    if isinstance(value, str):
        return _Entry(place=place, key=(*place, value), named=value, settings={})

    if isinstance(value, Mapping) and len(value) == 1:
        [(named, settings)] = value.items()
        if settings is None or isinstance(settings, Mapping):
            key = (*place, str(named))
            return _Entry(place=key, key=key, named=str(named), settings=settings or {})
    rule = "must be module:Class, or a mapping from it to its settings: {module:Class: {at: 3}}"
    check.record(place, rule, value)
    return None


def _find(entry: _Entry, check: Validator) -> type[Callback] | None:
    """Import the class of an item; where there is no such callback, record a problem."""

    def problem(rule: str) -> ConfigError:
        origin = check.origin(entry.place)
        return ConfigError(Problem(origin=origin, value=entry.named, rule=rule))

    module, _, name = entry.named.partition(":")
    try:
        if not module or not name:
            raise problem("must name a class, such as mymodule:LogImages")
        cls = find_class(entry.named, problem)
        if not (isinstance(cls, type) and issubclass(cls, Callback)):
            raise problem("does not name a subclass of trainer.Callback")
    except ConfigError as error:
        check.problems.extend(error.problems)
        return None
    return cls


def _checked(cls: type[Callback], entry: _Entry, check: Validator) -> dict[str, Any] | None:
    """Return the settings as ``cls`` takes them; None where there are problems."""
    form: type = cls
    if not _is_dataclass(cls):
        form = _form_of(cls)

    problems = len(check.problems)
    settings = check.settings(form, entry.settings, entry.key)
    check.missing(form, entry.settings, entry.key)
    return settings if len(check.problems) == problems else None


def _made(found: _Found, check: Validator) -> Callback | None:
    """Make a callback; a ValueError that it raises is a problem."""
    make: Callable[..., Callback] = found.cls
    try:
        return make(**found.settings)
    except ConfigError as error:
        check.problems.extend(error.problems)
    except ValueError as error:
        check.record(found.key, str(error))
    return None


def _is_dataclass(cls: type) -> bool:
    """Return whether a class is made from its fields: not by an ``__init__`` written below them."""
    owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
    return "__dataclass_fields__" in vars(owner)


def _form_of(cls: type) -> type:
    """Return a dataclass of the arguments that ``__init__`` takes by name.

    Raises:
        ConfigError: an annotation does not exist at run time.
    """
    parameters = inspect.signature(cls).parameters.values()
    hints = _hints_of(cls) if parameters else {}
    fields: list[tuple[str, Any, Any]] = []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        field = dataclasses.field(kw_only=True)
        if parameter.default is not parameter.empty:
            field = dataclasses.field(
                kw_only=True, default_factory=functools.partial(_unchanged, parameter.default)
            )
        fields.append((parameter.name, hints.get(parameter.name, Any), field))
    return dataclasses.make_dataclass(cls.__name__, fields)


def _hints_of(cls: type) -> dict[str, Any]:
    """Return the annotations of ``__init__``."""
    initialize: Any = cls.__init__  # type: ignore[misc]
    try:
        return typing.get_type_hints(initialize, include_extras=True)
    except NameError as error:
        origin = Origin(f"{cls.__module__}:{cls.__qualname__}")
        rule = f"annotations must exist at run time, outside of TYPE_CHECKING: {error}"
        raise ConfigError(Problem(origin=origin, rule=rule)) from None


def _unchanged(value: Any) -> Any:
    return value
