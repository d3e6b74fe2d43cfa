"""Callbacks that the training config names: found, their settings checked, and made.

    callbacks:
      - mymodule:LogImages
      - mymodule:Thaw: {at: 3, layers: "stem.*"}

The settings are the arguments of the class, and are checked against their annotations as a task's
settings are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..config.annotations import is_made_from_fields
from ..config.named_class import find_class
from ..config.validate import Validator
from ..errors import ConfigError, Origin, origin_of
from ..hooks import Callback


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
    check = Validator(partial(origin_of, origins or {}))
    made = [check.build(cls, settings, key) for key, cls, settings in _found(values, check)]
    if check.problems:
        raise ConfigError(check.problems)
    return [callback for callback in made if callback is not None]


def check_callbacks(values: Sequence[Any], origins: Mapping[str, Origin]) -> None:
    """Raise ``ConfigError`` if a callback could not be made.

    Dataclasses are made for that, as a task is. Others are not: their ``__init__`` may do work.
    """
    check = Validator(partial(origin_of, origins))
    for key, cls, settings in _found(values, check):
        look: Callable[..., Any] = check.build if is_made_from_fields(cls) else check.settings
        look(cls, settings, key)
    if check.problems:
        raise ConfigError(check.problems)


def _found(
    values: Sequence[Any], check: Validator
) -> Iterator[tuple[str, type[Callback], Mapping[str, Any]]]:
    """Yield the key, the class and the settings of each item. Record what is wrong with others."""
    for number, value in enumerate(values):
        place = f"callbacks.{number}"
        items = list(value.items()) if isinstance(value, Mapping) else [(value, None)]
        named, settings = items[0] if len(items) == 1 else ("", None)
        if not isinstance(settings, Mapping | type(None)):
            check.record(place, "must be module:Class, or {module:Class: {its settings}}", value)
            continue

        key = f"{place}.{named}"
        try:
            yield key, find_class(str(named), Callback, check.origin(key)), settings or {}
        except ConfigError as error:
            check.problems += error.problems
