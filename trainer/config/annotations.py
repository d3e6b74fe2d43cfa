"""Annotations of settings: what fits them, how text is read by them, and how they are said in
words.

Understood are ``bool``, ``int``, ``float``, ``str``, ``Literal``, an ``Enum`` (by name), ``Path``,
``Any``, ``list[...]``, ``tuple[...]``, ``set[...]``, ``frozenset[...]``, ``dict[str, ...]``, a
dataclass, or a union of these or with ``None``. ``Annotated[int, About(...)]`` adds help and
limits.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
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

Members = tuple[Any, ...]  # the members of a union

_SEQUENCES = (list, tuple, set, frozenset)
_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    PurePath: "a path",
    dict: "a mapping",
    type(None): "null",
} | dict.fromkeys(_SEQUENCES, "a list such as [1, 2]")


class Typed(str):
    """Text from the command line: the annotation of its key decides how it is read."""

    __slots__ = ()


@dataclass(frozen=True)
class About:
    """The note in ``Annotated[int, About("channels", minimum=1)]``: help and limits beside the
    type.

    Args:
        help: one line.
        minimum, above, maximum, below: limits of every number in the value; above and below are
            exclusive.
        whole: every number in the value is whole, also where it is written as 2e8.
        wanted: what must hold in the field's own words, where the types alone say too little.
        any_case: choices are text in any case, and ``true`` and ``false`` may stand in quotes.
        path: every text in the value is a path of this machine's file system; a ``Path`` is one
            anyway.
    """

    help: str = ""
    _: dataclasses.KW_ONLY
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    whole: bool = False
    wanted: str = ""
    any_case: bool = False
    path: bool = False

    def broken_by(self, value: float) -> str:
        """Return the rule that a number breaks, or nothing."""
        # A comparison and not math.isfinite, which fails for whole numbers too large for a float.
        if not abs(value) <= sys.float_info.max:
            return "must be a finite number"
        if self.whole and value != int(value):
            return "must be a whole number"
        limits = {
            f"at least {self.minimum}": self.minimum is None or value >= self.minimum,
            f"greater than {self.above}": self.above is None or value > self.above,
            f"at most {self.maximum}": self.maximum is None or value <= self.maximum,
            f"less than {self.below}": self.below is None or value < self.below,
        }
        said = [words for words in limits if not words.endswith("None")]
        return "" if all(limits.values()) else f"must be {' and '.join(said)}"


def unpacked(annotation: Any) -> tuple[Any, About]:
    """Return the type, and what is said about it."""
    if typing.get_origin(annotation) is not Annotated:
        return annotation, About()
    hint, *notes = typing.get_args(annotation)
    return hint, next((note for note in notes if isinstance(note, About)), About())


def union_members(annotation: Any) -> Members:
    """Return the members of a union; anything else is its own only member."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(
            member for part in typing.get_args(annotation) for member in union_members(part)
        )
    return (annotation,)


def base_of(member: Any) -> Any:
    """Return ``list`` for ``list[int]``; an annotation without parameters is its own base."""
    return typing.get_origin(member) or member


def is_a(member: Any, base: type) -> bool:
    """Tell whether an annotation is a class below ``base``."""
    return isinstance(member, type) and issubclass(member, base)


def plain(value: object, *, compared: bool = False) -> Any:
    """Return ``value`` as files hold it: text, finite numbers, lists and mappings; JSON and YAML
    give it back equal.

    Members of an ``Enum`` become their names, paths and whatever else has no form in a file become
    text.

    Args:
        compared: return what runs are compared by instead, the same in every process and as
            checkpoints of older runs hold it: members of an ``Enum`` by value, infinite numbers as
            they are, objects by their type.
    """
    nested = functools.partial(plain, compared=compared)
    if isinstance(value, enum.Enum):
        return nested(value.value) if compared else value.name
    if value is None or isinstance(value, bool) or (compared and isinstance(value, float)):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str | PurePath):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value) if field.init or compared)
        return {name: nested(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        return {str(key): nested(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nested(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(nested, value), key=str)
    if compared:  # the text of a function or an object would hold an address
        name = getattr(value, "__qualname__", None)
        return f"{value.__module__}.{name}" if name else type(value).__qualname__
    return repr(value)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def fits(member: Any, value: object) -> bool:
    """Tell whether the outermost type is right; items and limits are looked at afterwards."""
    base = base_of(member)
    if base is Any:
        return True
    if base is Literal:
        return any(
            value == choice and type(value) is type(choice) for choice in typing.get_args(member)
        )
    if base in (int, float):
        return is_number(value) and (base is float or isinstance(value, int))
    if base in _SEQUENCES:
        return isinstance(value, list | tuple)
    if is_a(base, enum.Enum):
        return isinstance(value, str) and value in base.__members__
    if is_a(base, PurePath):
        return isinstance(value, str)
    if base is dict or dataclasses.is_dataclass(base):
        return isinstance(value, dict)
    return base in (bool, str, type(None)) and isinstance(value, base)


def matched(members: Members, value: Any, *, any_case: bool = False) -> tuple[Any, Any]:
    """Return a value as it is meant, and the member that it fits; None where it fits none."""
    if isinstance(value, Typed):
        value = read_text(members, str(value))
    elif any_case and isinstance(value, str):
        value = in_any_case(members, value)
    return value, next((member for member in members if fits(member, value)), None)


def read_text(members: Members, text: str) -> Any:
    """Return command-line text as what it is meant as: ``no`` is text where text is wanted, though
    false in YAML.
    """
    value = parse_scalar(text)
    if text in _choices(members) or not any(
        fits(member, value) for member in members if member is not str
    ):
        textual = any(is_a(member, str) or is_a(member, PurePath) for member in members)
        return (
            text
            if textual or any(isinstance(choice, str) for choice in _choices(members))
            else value
        )
    return value


def in_any_case(members: Members, text: str) -> Any:
    """Return the choice, or the truth value, that ``text`` is in another case; else the text."""
    meant: dict[str, Any] = {
        choice.lower(): choice for choice in _choices(members) if isinstance(choice, str)
    }
    if bool in members:
        meant |= {"true": True, "false": False}
    return meant.get(text.lower(), text)


def _choices(members: Members) -> list[Any]:
    literal = [
        choice
        for member in members
        if base_of(member) is Literal
        for choice in typing.get_args(member)
    ]
    return [
        *literal,
        *(name for member in members if is_a(member, enum.Enum) for name in member.__members__),
    ]


def misfit(members: Members, value: object, wanted: str) -> str:
    """Return what must hold instead, and what to write where that is plain."""
    texts = [choice for choice in _choices(members) if isinstance(choice, str)]
    wanted = wanted or name_of(members)
    if value is None:
        return f"must be {wanted}, not null"
    rule = f"must be {wanted}" + (" or null" if type(None) in members else "")
    if value is False and "no" in texts:
        return f"{rule}; write 'no' in quotes, for YAML reads a bare no as false"
    if isinstance(value, str):
        if near := nearest(value, texts):
            return f"{rule}; did you mean {near!r}?"
        if re.fullmatch(r"[-+]?0\d+", value) and {int, float} & set(members):
            # from the command line: files with such numbers are refused
            return f"{rule}; write {int(value)}"
        yes = value.lower() in ("yes", "no", "on", "off")  # truth values in YAML, nothing in JSON
        unquoted = not yes and any(fits(member, parse_scalar(value)) for member in members)
        return f"{rule}; remove the quotes" if unquoted else rule
    if isinstance(value, float) and int in members and value.is_integer():
        return f"{rule}; write {value:.0f}"
    texts_only = all(member in (str, type(None)) or is_a(member, PurePath) for member in members)
    quotes = texts_only and not isinstance(value, list | dict)
    return f"{rule}; put it in quotes" if quotes else rule


def name_of(members: Members) -> str:
    """Return a union in words, without null: ``a whole number or text``."""
    choices = ", ".join(repr(choice) for choice in _choices(members))
    others = [
        _name(member)
        for member in members
        if member is not type(None)
        and base_of(member) is not Literal
        and not is_a(member, enum.Enum)
    ]
    return " or ".join([*([f"one of {choices}"] if choices else []), *others])


def _name(member: Any) -> str:
    base = base_of(member)
    if dataclasses.is_dataclass(base):
        return _NAMES[dict]
    if is_a(base, PurePath):
        return _NAMES[PurePath]
    return _NAMES.get(base, f"set in code: a file cannot give the type {member}")
