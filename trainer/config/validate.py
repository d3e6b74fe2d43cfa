"""Settings of configs, tasks and callbacks, checked by pydantic in strict JSON mode."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from ..errors import ConfigError, Origin, config_error
from .annotations import annotations_of, defaults_of, form_of
from .documents import parse_scalar
from .plain import plain

S = TypeVar("S")
_NO_TEXTS: Mapping[str, str] = MappingProxyType({})


def arguments_of(
    cls: Callable[..., Any],
    values: Mapping[str, Any],
    origin: Callable[[str], Origin],
    prefix: str = "",
    texts: Mapping[str, str] = _NO_TEXTS,
) -> dict[str, Any]:
    """Return the values as the arguments of ``cls``.

    Args:
        origin: returns the origin of a dotted key.
        prefix: the dotted key of ``values``, with a dot.
        texts: values of the command line, by dotted key, which replace other values. They are read
            as YAML, and stay text if only the text fits.

    Raises:
        ConfigError: with all wrong values.
    """
    own = {key.removeprefix(prefix): texts[key] for key in sorted(texts) if key.startswith(prefix)}
    typed = {key: parse_scalar(text) for key, text in own.items()}
    fitting, broken = _checked(cls, with_values(values, typed))
    as_text = {key: text for key, text in own.items() if key in broken}
    if as_text:
        fitting, left = _checked(cls, with_values(values, typed | as_text))
        broken = {key: rule for key, rule in broken.items() if key in left}
    if broken:
        raise config_error(broken, lambda key: origin(prefix + key))
    return fitting


def build(
    cls: Callable[..., S],
    values: Mapping[str, Any],
    origin: Callable[[str], Origin],
    prefix: str = "",
    texts: Mapping[str, str] = _NO_TEXTS,
) -> S:
    """Return ``cls(**values)``. Raise as ``arguments_of``, and for a ValueError of ``cls``."""
    fitting = arguments_of(cls, values, origin, prefix, texts)
    try:
        return cls(**fitting)
    except ConfigError as error:
        raise ConfigError(
            [replace(problem, origin=origin(problem.origin.key)) for problem in error.problems]
        ) from None
    except ValueError as error:
        raise origin(prefix.removesuffix(".")).error(str(error)) from None


def with_values(root: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``root`` with other values at some dotted keys. New mappings replace other values."""
    changed = dict(root)
    for key, value in values.items():
        first, _, below = key.partition(".")
        inner = changed.get(first)
        if below:
            value = with_values(inner if isinstance(inner, Mapping) else {}, {below: value})
        changed[first] = value
    return changed


def _checked(
    cls: Callable[..., Any], values: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, tuple[str, Any]]]:
    """Return the values as the arguments of ``cls``, or the broken rules and values by key."""
    # A default may have a type that no file can give, and may break the limits.
    defaults = {
        name: default
        for name, default in defaults_of(cls).items()
        if name in values and repr(values[name]) == repr(plain(default))
    }
    data = plain({name: value for name, value in values.items() if name not in defaults})
    try:
        fitting = form_of(cls).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        from .pydantic_errors import broken_rules

        return {}, broken_rules(error, data, annotations_of(cls))
    plain(fitting)  # declares the secrets of callbacks, whose settings stay as they were given
    return defaults | fitting, {}
