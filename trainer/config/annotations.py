"""Annotations as kinds of value: what fits them, how text is read by them, and how they are told in words.

A kind: ``bool``, ``int``, ``float``, ``str``, ``Literal``, an ``Enum`` (by name), ``Path``, ``Any``, ``list[...]``,
``tuple[...]``, ``set[...]``, ``frozenset[...]``, ``dict[str, ...]``, a dataclass, or a union of these or with ``None``.
``Annotated[int, About(...)]`` adds help and limits.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal

from ..text import nearest
from .documents import parse_scalar

Kinds = tuple[Any, ...]  # the members of a union

_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list such as [1, 2]",
    tuple: "a list such as [1, 2]",
    set: "a list such as [1, 2]",
    frozenset: "a list such as [1, 2]",
    PurePath: "a path",
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


def is_a(kind: Any, base: type) -> bool:
    """Tell whether a kind is a class below ``base``."""
    return isinstance(kind, type) and issubclass(kind, base)


def plain(value: object) -> Any:
    """Return ``value`` as files hold it: text, finite numbers, lists and mappings; JSON and YAML give it back equal.

    Members of an ``Enum`` become their names, paths and whatever else has no form in a file become text.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str | PurePath):
        return str(value)
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=repr)
    return repr(value)


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
    if origin in (list, tuple, set, frozenset):
        return isinstance(value, list | tuple)
    if is_a(origin, enum.Enum):
        return isinstance(value, str) and value in origin.__members__
    if is_a(origin, PurePath):
        return isinstance(value, str)
    if origin is dict or dataclasses.is_dataclass(origin):
        return isinstance(value, dict)
    return origin in (bool, str, type(None)) and isinstance(value, origin)


def read_text(kinds: Kinds, text: str) -> Any:
    """Command-line text as the value it is meant as: ``no`` is text where text is wanted, though false in YAML."""
    value = parse_scalar(text)
    if text in _choices(kinds) or not any(fits(kind, value) for kind in kinds if kind is not str):
        textual = any(is_a(kind, str) or is_a(kind, PurePath) for kind in kinds)
        return text if textual or any(isinstance(choice, str) for choice in _choices(kinds)) else value
    return value


def _choices(kinds: Kinds) -> list[Any]:
    literal = [choice for kind in kinds if origin_of(kind) is Literal for choice in typing.get_args(kind)]
    return [*literal, *(name for kind in kinds if is_a(kind, enum.Enum) for name in kind.__members__)]


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
        if near := nearest(value, texts):
            return f"{rule}; did you mean {near!r}?"
        if re.fullmatch(r"[-+]?0\d+", value) and {int, float} & set(kinds):
            return f"{rule}; write {int(value)}"  # from the command line: files with such numbers are refused
        return f"{rule}; remove the quotes" if any(fits(kind, parse_scalar(value)) for kind in kinds) else rule
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"{rule}; write {value:.0f}"
    texts_only = all(kind in (str, type(None)) or is_a(kind, PurePath) for kind in kinds)
    quotes = texts_only and not isinstance(value, list | dict)
    return f"{rule}; put it in quotes" if quotes else rule


def name_of(kinds: Kinds) -> str:
    """A union in words, without null: ``a whole number or text``."""
    named = [kind for kind in kinds if kind is not type(None)]
    choices = ", ".join(repr(choice) for choice in _choices(kinds))
    others = [_name(kind) for kind in named if origin_of(kind) is not Literal and not is_a(kind, enum.Enum)]
    return " or ".join([*([f"one of {choices}"] if choices else []), *others])


def _name(kind: Any) -> str:
    origin = origin_of(kind)
    if dataclasses.is_dataclass(origin):
        return _NAMES[dict]
    if is_a(origin, PurePath):
        return _NAMES[PurePath]
    return _NAMES.get(origin, f"set in code: a file cannot give the type {kind}")
