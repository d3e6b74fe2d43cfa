"""Settings of configs, tasks and callbacks, checked by pydantic in strict JSON mode."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from ..errors import ConfigError, Origin, Problem
from .annotations import annotations_of, defaults_of, form_of
from .documents import parse_scalar
from .plain import plain

S = TypeVar("S")
_NO_TEXTS: Mapping[str, str] = MappingProxyType({})


class Validator:
    """A collector of the mistakes in settings.

    Args:
        origin: returns the origin of a dotted key.
        texts: values of the command line, by dotted key, which replace other values. They are read
            as YAML, and stay text if only the text fits.
    """

    def __init__(
        self, origin: Callable[[str], Origin], texts: Mapping[str, str] = _NO_TEXTS
    ) -> None:
        self.problems: list[Problem] = []
        self.origin = origin
        self.texts = texts

    def settings(
        self, cls: Callable[..., Any], values: Mapping[str, Any], prefix: str = ""
    ) -> dict[str, Any] | None:
        """Return the values as the arguments of ``cls``. Record mistakes and return None if any.

        ``prefix`` is the dotted key of ``values``, with a dot.
        """
        texts = {
            key.removeprefix(prefix): self.texts[key]
            for key in sorted(self.texts)
            if key.startswith(prefix)
        }
        typed = {key: parse_scalar(text) for key, text in texts.items()}
        fitting, problems = _checked(cls, with_values(values, typed))
        as_text = {key: text for key, text in texts.items() if key in problems}
        if as_text:
            fitting, left = _checked(cls, with_values(values, typed | as_text))
            problems = {key: broken for key, broken in problems.items() if key in left}

        for key, (rule, value) in problems.items():
            self.record(prefix + key, rule, value)
        return None if problems else fitting

    def build(self, cls: Callable[..., S], values: Mapping[str, Any], prefix: str = "") -> S | None:
        """Return ``cls(**values)``, or None if there are problems or a ValueError of ``cls``."""
        fitting = self.settings(cls, values, prefix)
        if fitting is None:
            return None
        try:
            return cls(**fitting)
        except ConfigError as error:
            for problem in error.problems:
                self.record(problem.origin.key, problem.rule, problem.value)
        except ValueError as error:
            self.record(prefix.removesuffix("."), str(error))
        return None

    def made(self, cls: Callable[..., S], values: Mapping[str, Any], prefix: str = "") -> S:
        """Return what ``build`` returns. ConfigError: there are problems."""
        built = self.build(cls, values, prefix)
        self.end()
        assert built is not None
        return built

    def record(self, key: str, rule: str, value: object = None) -> None:
        """Record a problem of a dotted key."""
        self.problems.append(Problem(origin=self.origin(key), rule=rule, value=value))

    def end(self) -> None:
        """Raise ConfigError if there are problems."""
        if self.problems:
            raise ConfigError(self.problems)


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
