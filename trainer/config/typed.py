"""Texts of the command line, whose annotation is not known where they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from .documents import Key, parse_scalar


class Typed(str):
    """A value as it was typed on the command line."""

    __slots__ = ()


def typed_keys(value: object, key: Key = ()) -> Iterator[Key]:
    """Yield the keys below which a value was typed; () where that is the value itself."""
    if isinstance(value, Typed):
        yield key
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from typed_keys(item, (*key, str(name)))


def read_typed(value: Any, as_text: Collection[Key] = (), key: Key = ()) -> Any:
    """Return a value with all that was typed in it read as YAML scalars.

    Args:
        as_text: keys whose values stay text: ``no`` is text where text is wanted.
    """
    if isinstance(value, Typed):
        return str(value) if key in as_text else _scalar(str(value))
    if isinstance(value, dict):
        return {name: read_typed(item, as_text, (*key, str(name))) for name, item in value.items()}
    return value


def _scalar(text: str) -> Any:
    """Return text as YAML reads it; but what is text to YAML as well stays whole.

    YAML would drop what follows `` #``, and blanks around it.
    """
    value = parse_scalar(text)
    if isinstance(value, str) and not text.startswith(("'", '"')):
        return text
    return value
