"""Settings checked by pydantic in strict JSON mode: each mistake is a ``Problem`` with its origin.

The same check serves the training config, the dataclass of a task and the arguments of a callback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from ..errors import ConfigError, Origin, Problem
from ..text import did_you_mean
from .annotations import annotations_of, defaults_of, form_of
from .documents import parse_scalar
from .plain import plain

S = TypeVar("S")
_NO_ORIGIN = Origin("")
_NO_TEXTS: Mapping[str, str] = MappingProxyType({})


class Validator:
    """A collector of what is wrong with settings, in ``problems``.

    Args:
        origin: returns the origin of a dotted key.
    """

    def __init__(self, origin: Callable[[str], Origin] = _NO_ORIGIN.named) -> None:
        self.origin = origin
        self.problems: list[Problem] = []

    def settings(
        self,
        cls: Callable[..., Any],
        values: Mapping[str, Any],
        prefix: str = "",
        texts: Mapping[str, str] = _NO_TEXTS,
    ) -> dict[str, Any]:
        """Return the values as the arguments of ``cls``, or none. Record what is wrong with them.

        Args:
            values: by name.
            prefix: the dotted key of ``values``.
            texts: values typed on the command line, by dotted key below ``prefix``. They replace
                others. They are read as YAML, and stay text if only the text fits.
        """
        given = with_values(values, {key: parse_scalar(text) for key, text in texts.items()})
        fitting, problems = _checked(cls, given)

        wrong = {problem.key for problem in problems}.intersection(texts)
        if wrong:
            as_text = with_values(given, {key: texts[key] for key in wrong})
            wrong -= {problem.key for problem in _checked(cls, as_text)[1]}
            fitting, problems = _checked(
                cls, with_values(given, {key: texts[key] for key in wrong})
            )

        for problem in problems:
            self.record(_joined(prefix, problem.key), problem.rule, problem.value)
        return fitting

    def build(
        self,
        cls: Callable[..., S],
        values: Mapping[str, Any],
        prefix: str = "",
        texts: Mapping[str, str] = _NO_TEXTS,
    ) -> S | None:
        """Return ``cls(**values)``, or None if there are problems.

        A ValueError that the class itself raises is one of them.
        """
        problems = len(self.problems)
        fitting = self.settings(cls, values, prefix, texts)
        if len(self.problems) > problems:
            return None

        try:
            return cls(**fitting)
        except ConfigError as error:
            for problem in error.problems:
                at = self.origin(problem.key) if problem.key else problem.origin
                origin = problem.origin if problem.origin.line else at
                self.problems.append(dataclasses.replace(problem, origin=origin))
        except ValueError as error:
            self.record(prefix, str(error))
        return None

    def record(self, key: str, rule: str, value: object = None) -> None:
        """Record a problem of a dotted key, whose origin is looked up."""
        self.problems.append(Problem(origin=self.origin(key), rule=rule, value=value))


def with_values(root: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``root`` with other values at some dotted keys. What is no mapping is replaced."""
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
) -> tuple[dict[str, Any], list[Problem]]:
    """Return the values as the arguments of ``cls``, or none and the problems by relative key."""
    # A default may have a type that no file can give, and be beyond the limits.
    defaults = {
        name: default
        for name, default in defaults_of(cls).items()
        if name in values and repr(values[name]) == repr(plain(default))
    }
    data = plain({name: value for name, value in values.items() if name not in defaults})
    try:
        fitting = form_of(cls, _build_nested).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        return {}, list(_problems_of(error, data, annotations_of(cls)))
    return defaults | fitting, []


def _build_nested(cls: type, values: Mapping[str, Any]) -> Any:
    """Return the settings of a nested dataclass.

    Raises:
        ConfigError: what is wrong with them, with keys relative to ``values``.
    """
    check = Validator()
    settings = check.build(cls, values)
    if check.problems:
        raise ConfigError(check.problems)
    return settings


def _problems_of(error: ValidationError, data: object, known: Collection[str]) -> Iterator[Problem]:
    """Yield the problems of ``data``, at most one for each key. Keys are relative to it."""
    found: dict[str, list[Problem]] = {}
    for details in error.errors(include_url=False):
        key = _key_of(details, data)
        raised = details.get("ctx", {}).get("error")
        if isinstance(raised, ConfigError):  # of nested settings
            problems = list(raised.problems)
        else:
            value = None if details["type"] == "missing" else details["input"]
            rule = _rule_of(details, known)
            problems = [Problem(origin=_NO_ORIGIN, rule=rule, value=value)]
        for problem in problems:
            found.setdefault(_joined(key, problem.key), []).append(problem)

    for key, problems in found.items():
        # If a value fits no member of a union, a mistake inside of it says the most.
        if not any(other.startswith(f"{key}.") for other in found):
            rule = " or ".join(dict.fromkeys(problem.rule for problem in problems))
            yield Problem(origin=Origin("", key=key), rule=rule, value=problems[0].value)


def _key_of(details: Any, data: Any) -> str:
    """Return the dotted key of an error. pydantic's location also names the members of unions."""
    key = ""
    for part in details["loc"]:
        with contextlib.suppress(KeyError, IndexError, TypeError):
            data = data[part]
            key = _joined(key, str(part))
    return _joined(key, str(details["loc"][-1])) if details["type"] == "missing" else key


def _rule_of(details: Any, known: Collection[str]) -> str:
    """Return the rule that a value breaks: pydantic's own words, or those of a ValueError."""
    if details["type"] == "extra_forbidden":
        return f"unknown key; {did_you_mean(details['loc'][-1], known)}"
    if details["type"] == "missing":
        return "is required"
    rule = str(details.get("ctx", {}).get("error") or details["msg"])
    rule = re.sub("^(Input|String) should", "must", rule)
    if details["input"] is False and "'no'" in rule:
        rule += "; put no in quotes, for YAML reads a bare no as false"
    return rule


def _joined(*keys: str) -> str:
    return ".".join(filter(None, keys))
