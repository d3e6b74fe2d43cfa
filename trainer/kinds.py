"""Annotations as kinds of value: what fits them, how text is read by them, and how they are told in words.

A kind: ``bool``, ``int``, ``float``, ``str``, ``Literal``, ``Any``, ``list[...]``, ``tuple[...]``, ``dict[str, ...]``,
a dataclass, or a union of these or with ``None``. ``Annotated[int, About(...)]`` adds help and limits.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
import types
import typing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from .documents import parse_scalar

Kinds = tuple[Any, ...]  # the members of a union

_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list such as [1, 2]",
    tuple: "a list such as [1, 2]",
    dict: "a mapping",
    type(None): "null",
}


class Typed(str):
    """Text from the command line: the annotation of its key decides how it is read."""

    __slots__ = ()


@dataclass(frozen=True)
class About:
    """What ``Annotated[int, About("channels", minimum=1)]`` says beside the type.

    Args:
        help: one line.
        minimum, above, maximum, below: limits of every number in the value; above and below are exclusive.
        wanted: what must hold in the field's own words, where the types alone say too little.
    """

    help: str = ""
    _: dataclasses.KW_ONLY
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    wanted: str = ""

    def broken_by(self, value: float) -> str:
        """The rule that a number breaks, or nothing."""
        # A comparison and not math.isfinite, which fails for whole numbers too large for a float.
        if not abs(value) <= sys.float_info.max:
            return "must be a finite number"
        limits = {
            f"at least {self.minimum}": self.minimum is None or value >= self.minimum,
            f"greater than {self.above}": self.above is None or value > self.above,
            f"at most {self.maximum}": self.maximum is None or value <= self.maximum,
            f"less than {self.below}": self.below is None or value < self.below,
        }
        said = [words for words in limits if not words.endswith("None")]
        return "" if all(limits.values()) else f"must be {' and '.join(said)}"


def unpacked(annotation: Any) -> tuple[Any, About]:
    """The type, and what is said about it."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation, About()
    kind, *notes = typing.get_args(annotation)
    return kind, next((note for note in notes if isinstance(note, About)), About())


def members(annotation: Any) -> Kinds:
    """The members of a union; anything else is its own only member."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(member for part in typing.get_args(annotation) for member in members(part))
    return (annotation,)


def origin_of(kind: Any) -> Any:
    """``list`` for ``list[int]``; a kind without parameters is its own origin."""
    return typing.get_origin(kind) or kind


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def fits(kind: Any, value: object) -> bool:
    """Whether the outermost type is right; items and limits are looked at afterwards."""
    origin = origin_of(kind)
    if origin is Any:
        return True
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in typing.get_args(kind))
    if origin in (int, float):
        return is_number(value) and (origin is float or isinstance(value, int))
    if origin in (list, tuple):
        return isinstance(value, list | tuple)
    if origin is dict or dataclasses.is_dataclass(origin):
        return isinstance(value, dict)
    return origin in (bool, str, type(None)) and isinstance(value, origin)


def read_text(kinds: Kinds, text: str) -> Any:
    """Command-line text as the value it is meant as: ``no`` is text where text is wanted, though false in YAML."""
    value = _parsed(text)
    if text in _choices(kinds) or not any(fits(kind, value) for kind in kinds if kind is not str):
        textual = str in kinds or any(isinstance(choice, str) for choice in _choices(kinds))
        return text if textual else value
    return value


def _parsed(text: str) -> Any:
    try:
        return parse_scalar(text)
    except ValueError:  # what looks like a date and is none, such as 2024-13-45
        return text


def _choices(kinds: Kinds) -> list[Any]:
    return [choice for kind in kinds if origin_of(kind) is Literal for choice in typing.get_args(kind)]


def misfit(kinds: Kinds, value: object, wanted: str) -> str:
    """What must hold instead, and what to write where that is plain."""
    choices = _choices(kinds)
    null = type(None) in kinds
    wanted = wanted or name_of(kinds)
    if value is None:
        return f"must be {wanted}, not null"
    rule = f"must be {wanted}" + (" or null" if null else "")
    texts = [choice for choice in choices if isinstance(choice, str)]
    if value is False and "no" in texts:
        return f"{rule}; write 'no' in quotes, for YAML reads a bare no as false"
    if isinstance(value, str):
        near = difflib.get_close_matches(value.lower(), texts, n=1)
        if near:
            return f"{rule}; did you mean {near[0]!r}?"
        return f"{rule}; remove the quotes" if any(fits(kind, _parsed(value)) for kind in kinds) else rule
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"{rule}; write {value:.0f}"
    quotes = set(kinds) <= {str, type(None)} and not isinstance(value, list | dict)
    return f"{rule}; put it in quotes" if quotes else rule


def name_of(kinds: Kinds) -> str:
    """A union in words, without null: ``a whole number or text``."""
    named = [kind for kind in kinds if kind is not type(None)]
    choices = ", ".join(repr(choice) for choice in _choices(kinds))
    others = [_name(kind) for kind in named if origin_of(kind) is not Literal]
    return " or ".join([*([f"one of {choices}"] if choices else []), *others])


def _name(kind: Any) -> str:
    origin = origin_of(kind)
    if dataclasses.is_dataclass(origin):
        return _NAMES[dict]
    return _NAMES.get(origin, f"set in code: a file cannot give the type {kind}")
