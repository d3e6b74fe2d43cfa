"""Values in the form that files hold."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from ..text import HIDDEN, SECRETS


def plain(value: object, *, compared: bool = False) -> Any:
    """Return ``value`` as text, finite numbers, lists and mappings: JSON and YAML keep these equal.

    Args:
        compared: return the form of checkpoints and of comparisons, which is the same in every
            process: infinite numbers are unchanged, and other objects are named by their type.
    """
    nested = functools.partial(plain, compared=compared)

    if hasattr(value, "get_secret_value"):  # pydantic's SecretStr and SecretBytes
        secret = str(value.get_secret_value())
        SECRETS.add(secret)
        return secret and HIDDEN
    if isinstance(value, enum.Enum):
        return nested(value.value)
    if isinstance(value, int | None):
        return value
    if isinstance(value, float) and (compared or math.isfinite(value)):
        return float(value)  # without a class such as numpy's
    if isinstance(value, str | float | PurePath):
        return str(value)

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: nested(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if (field.compare if compared else field.init)
        }
    if isinstance(value, Mapping):
        return {str(key): nested(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        items = list(map(nested, value))
        return items if isinstance(value, list | tuple) else sorted(items, key=str)

    if hasattr(value, "__qualname__"):  # a function or class, whose own text may hold an address
        return f"{value.__module__}.{value.__qualname__}"
    return type(value).__qualname__ if compared else repr(value)


def dotted(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value that is no mapping, with the keys above it joined by dots."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def flat(prefix: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return nested values as texts by dotted keys behind a prefix."""
    return {
        key: value if isinstance(value, str) else json.dumps(plain(value, compared=True))
        for key, value in dotted(values, prefix)
    }
