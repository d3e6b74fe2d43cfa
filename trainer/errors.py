"""Every error that users can meet.

    TrainerError                 exit code 1
    ├── ConfigError (ValueError)       2    a file, a key or a value is wrong
    ├── LaunchError (ValueError)       2    what runs is not what was asked for
    ├── DataError (ValueError)         1    the data cannot serve this run
    └── CheckpointError (ValueError)   1    files of a run cannot be written or read

Users' mistakes are exceptions of this tree; broken invariants are asserts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class TrainerError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1


class LaunchError(TrainerError, ValueError):
    """The processes, devices or strategy that run are not those that were asked for."""

    exit_code = 2


class DataError(TrainerError, ValueError):
    """The data cannot serve this run."""


class CheckpointError(TrainerError, ValueError):
    """Files of a run cannot be written or read."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong, told in one line: ``where: key: value: rule``.

    Args:
        where: the home of the value: ``file:line`` or ``command line``.
        key: dotted key, for example ``deepspeed_config.zero_stage``; may be empty.
        rule: what must hold and what to change, without a full stop.
        value: the offending value as the user wrote it; omitted when there is none.
    """

    where: str
    key: str
    rule: str
    value: object = None

    def __str__(self) -> str:
        shown = "" if self.value is None else f" {_shown(self.value)}:"
        key = f" {self.key}:" if self.key else ""
        return f"{self.where}:{key}{shown} {self.rule}"


class ConfigError(TrainerError, ValueError):
    """A file, a key or a value is wrong; ``problems`` holds all that were found, one line each."""

    exit_code = 2

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        assert self.problems, "a ConfigError needs at least one problem"
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        # An exception is sent to other ranks as its class and its text; this class is made from problems.
        return ConfigError, (self.problems,)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` that ``name`` is a misspelling of: one letter away, or alike by three quarters."""
    name, lower = name.lower(), {one.lower(): one for one in sorted(known)}
    # difflib misses short names, and is misled by long ones that differ in one letter (cp_size, tp_size).
    close = [name] if name in lower else [one for one in lower if _one_letter_apart(name, one)]
    found = close or difflib.get_close_matches(name, lower, n=1, cutoff=0.75)
    return lower[found[0]] if found else None


def listed(names: Sequence[str], most: int = 3) -> str:
    """Join the first names, and count the others: ``a, b, c (and 5 more)``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" (and {more} more)" if more > 0 else "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?``, else the short list of what is known, else the three that are closest."""
    names = sorted(set(known))
    if near := nearest(name, names):
        return f"did you mean {near!r}?"
    if len(names) <= 12:
        return f"known: {', '.join(names)}"
    return f"the closest are {', '.join(difflib.get_close_matches(name, names, n=3, cutoff=0.0))}"


def _one_letter_apart(one: str, other: str) -> bool:
    """Tell whether one letter was left out, put in, replaced, or exchanged with its neighbour."""
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    left, right = one[start:], other[start:]
    return right in (left[1:], left[1:2] + left[:1] + left[2:]) or right[1:] in (left, left[1:])


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 80 else text[:77] + "..."
