"""Values as they were typed, with their homes, and the checks that turn them into what is meant."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from ...config.documents import Document, Key
from ...errors import Problem
from ...text import nearest
from ..request import Given

__all__ = ["Check", "Given", "every", "lookup", "numeric", "unknown"]


class Check:
    """Collects all problems and notices of a request; a failed check answers None and goes on."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notices: list[str] = []

    def fail(self, given: Given, rule: str) -> None:
        """Record a problem; the first of a value is enough."""
        if all((problem.where, problem.key) != (given.where, given.key) for problem in self.problems):
            self.problems.append(given.problem(rule))

    def notice(self, given: Given, text: str) -> None:
        self.notices.append(f"{given.where}: {given.key}: {text}")

    def whole(self, given: Given | None, *, at_least: int) -> int | None:
        if given is None:
            return None
        value = given.value
        if isinstance(value, bool) or not isinstance(value, int):
            whole = isinstance(value, float) and value.is_integer()
            self.fail(given, "must be a whole number" + (f"; write {value:.0f}" if whole else _unquote(value)))
        elif value < at_least:
            self.fail(given, f"must be at least {at_least}")
        else:
            return value
        return None

    def number(self, given: Given | None) -> float | None:
        """A finite number of 0 or more."""
        if given is None:
            return None
        value = given.value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(given, "must be a number" + _unquote(value))
        elif not 0 <= value < math.inf:
            self.fail(given, "must be 0 or more")
        else:
            return float(value)
        return None

    def switch(self, given: Given | None, *, quoted: bool = True) -> bool | None:
        """true or false; in quotes too where Accelerate reads it from a variable, thus as text."""
        if given is None:
            return None
        value = given.value
        if quoted and isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if isinstance(value, bool):
            return value
        self.fail(given, "must be true or false" + _unquote(value))
        return None

    def text(self, given: Given | None) -> str | None:
        if given is None or isinstance(given.value, str):
            return None if given is None else given.value
        self.fail(given, "must be text; put it in quotes")
        return None

    def choice(self, given: Given | None, names: Iterable[str]) -> str | None:
        """One of ``names``, in any case, as it stands there."""
        if given is None:
            return None
        by_case = {name.lower(): name for name in names}
        found = by_case.get(str(given.value).lower())
        if found is None:
            near = difflib.get_close_matches(str(given.value).lower(), by_case, n=1, cutoff=0.6)
            hint = f"; did you mean {by_case[near[0]]!r}?" if near else ""
            self.fail(given, f"must be one of {', '.join(by_case.values())}{hint}")
        return found


def lookup(doc: Document, path: Key) -> Given | None:
    """What was typed at ``path``."""
    data: Any = doc.data
    for name in path:
        if not isinstance(data, dict) or name not in data:
            return None
        data = data[name]
    return Given(value=data, where=doc.where(*path), key=".".join(path))


def every(doc: Document, path: Key = ()) -> Iterator[Given]:
    """Every value of the file, at any depth."""
    given = lookup(doc, path)
    assert given is not None
    if path:
        yield given
    if isinstance(given.value, dict):
        for key in given.value:
            yield from every(doc, (*path, key))


def unknown(given: Given, name: str, known: Collection[str], owner: str, elsewhere: str = "") -> Problem:
    """Return the problem of an unknown key: where it belongs, the key that it misspells, or whose keys they are.

    Args:
        owner: the file whose documentation lists its keys, such as ``DeepSpeed's JSON``.
    """
    near = nearest(name, known)
    hint = elsewhere or (f"did you mean {near!r}?" if near else "")
    if not hint and len(known) <= 12:
        hint = f"known: {', '.join(sorted(known))}"
    return given.problem(f"unknown key; {hint or f'{owner} has none of this name; remove it'}")


def numeric(text: object) -> bool:
    """Whether text in quotes is a number or a truth value that lost its type."""
    if not isinstance(text, str):
        return False
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false")
    return True


def _unquote(value: object) -> str:
    return "; remove the quotes" if numeric(value) else ""
