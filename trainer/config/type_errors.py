"""pydantic's errors as problems: where in the data, what must hold, and what to write instead."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from ..errors import ConfigError, Origin, Problem
from ..text import nearest
from .documents import Key, parse_scalar

# What must be there, by pydantic's type of error; for the others its own message serves.
_WORDS = {
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "list_type": "a list such as [a, b]",
    "tuple_type": "a list such as [a, b]",
    "dict_type": "a mapping",
    "literal_error": "one of {expected}",
    "finite_number": "a finite number",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}
_NUMBERS = {"int_type": (int,), "float_type": (int, float), "bool_type": (bool,)}
_TRUTH_VALUES_OF_YAML = ("yes", "no", "on", "off")  # text in JSON


class WrongType(Problem):
    """A problem of a value whose type is wrong, whatever its limits."""


def problems_of(error: ValidationError, data: object) -> list[Problem]:
    """Return the problems of ``data``, one for each place; their keys are relative to it."""
    found: dict[Key, list[Any]] = {}
    for details in error.errors(include_url=False):
        found.setdefault(_path(details["loc"], data), []).append(details)

    problems: list[Problem] = []
    for path, details_of_place in found.items():
        # Of a union, what is wrong inside of one member says more than what the others are.
        inside = any(len(other) > len(path) and other[: len(path)] == path for other in found)
        if not inside:
            problems += _problems_at(path, details_of_place)
    return problems


def _path(location: tuple[int | str, ...], data: Any) -> Key:
    """Return the keys of a location: pydantic's has the members of unions among them."""
    path: list[str] = []
    for part in location:
        is_key = isinstance(data, Mapping) and part in data
        is_index = isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
        if is_key or is_index:
            path.append(str(part))
            data = data[part]
    return tuple(path)


def _problems_at(path: Key, found: list[Any]) -> list[Problem]:
    """Return the problems of one value; of nested settings these can be several."""
    origin = Origin("", key=".".join(path))
    # Of a union, a limit of the member that fits says more than the types of the others.
    beyond_types = [details for details in found if not _is_of_type(details)]
    if not beyond_types:
        value = found[0]["input"]
        words = dict.fromkeys(_words(details) for details in found)
        rule = f"must be {' or '.join(words)}{_hint(found, value)}"
        return [WrongType(origin=origin, rule=rule, value=value)]

    details = beyond_types[0]
    raised = details.get("ctx", {}).get("error")
    if isinstance(raised, ConfigError):
        return [_below(path, problem) for problem in raised.problems]
    if raised is not None:
        rule = str(raised)
    elif details["type"] in _WORDS:
        rule = f"must be {_words(details)}"
    else:
        rule = details["msg"].replace("Input should be", "must be")
    return [Problem(origin=origin, rule=rule, value=details["input"])]


def _below(path: Key, problem: Problem) -> Problem:
    """Return a problem of nested settings under its key in the whole."""
    key = ".".join(part for part in (*path, problem.key) if part)
    return dataclasses.replace(problem, origin=Origin("", key=key))


def _is_of_type(details: Any) -> bool:
    return bool(details["type"] == "literal_error" or details["type"].endswith("_type"))


def _words(details: Any) -> str:
    """Return what must be there, such as ``at least 1``."""
    if details["type"] not in _WORDS:
        return str(details["msg"].replace("Input should be ", ""))
    context: dict[str, Any] = {}
    for name, value in details.get("ctx", {}).items():
        is_whole = isinstance(value, float) and value.is_integer()
        context[name] = int(value) if is_whole else value
    if "expected" in context:  # 'a', 'b' or 'c'
        context["expected"] = ", ".join(context["expected"].rsplit(" or ", 1))
    return _WORDS[details["type"]].format(**context)


def _is_placeholder(value: object) -> bool:
    """Return whether a value is what YAML makes of ``{lr}`` without quotes."""
    return isinstance(value, dict) and list(value.values()) == [None]


def _hint(found: list[Any], value: object) -> str:
    """Return what to write instead of a value of the wrong type, where that is plain."""
    kinds = {details["type"] for details in found}
    choices: list[str] = []
    for details in found:
        choices += re.findall("'(.*?)'", details.get("ctx", {}).get("expected", ""))

    if value is None:
        return ", not null"
    if value is False and "no" in choices:
        return "; write 'no' in quotes, for YAML reads a bare no as false"
    if isinstance(value, float) and "int_type" in kinds and value.is_integer():
        return f"; write {value:.0f}"
    if kinds == {"string_type"} and not isinstance(value, list | dict):
        return "; put it in quotes"
    if kinds == {"string_type"} and _is_placeholder(value):
        return "; put it in quotes, for YAML reads braces as a mapping"

    if isinstance(value, str):
        near = nearest(value, choices)
        if near:
            return f"; did you mean {near!r}?"
        unquoted = type(parse_scalar(value))
        fits = any(unquoted in _NUMBERS.get(kind, ()) for kind in kinds)
        if fits and value.lower() not in _TRUTH_VALUES_OF_YAML:
            return "; remove the quotes"
    return ""
