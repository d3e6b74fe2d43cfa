"""Every error that users can meet, and the origins of values that messages name.

    TrainerError                 exit code 1
    ├── ConfigError (ValueError)       2    a file, a key or a value is wrong
    ├── LaunchError (ValueError)       2    what runs is not what was asked for
    ├── DataError (ValueError)         1    the data cannot serve this run
    └── CheckpointError (ValueError)   1    files of a run cannot be written or read

Users' mistakes are exceptions of this tree; broken invariants are asserts.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from .text import hidden, is_secret

T = TypeVar("T")
U = TypeVar("U")


class TrainerError(Exception):
    """Base of all errors raised on purpose."""

    exit_code = 1
    on_every_rank = True  # a wrong file is found by all of them; one tells it


class LaunchError(TrainerError, ValueError):
    """The processes, devices or strategy that run are not those that were asked for."""

    exit_code = 2


class DataError(TrainerError, ValueError):
    """The data cannot serve this run."""


class CheckpointError(TrainerError, ValueError):
    """Files of a run cannot be written or read."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Turn an ``OSError`` of the block into a ``CheckpointError``: that a disk is full is told in
    one line.
    """
    try:
        yield path
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written: {error.strerror}; once it can, resume: auto goes on from the newest checkpoint"
        ) from None


@dataclass(frozen=True)
class Origin:
    """The place that a value comes from; prints as ``file:line (key)`` or ``command line
    (--flag)``.

    Args:
        source: a file, ``command line``, or what else said it, such as ``TrainConfig``.
        line: the line of the file.
        key: the dotted key or the flag there; "" for the source as a whole.
        is_default: nobody set the value: whatever else says one holds instead.
    """

    source: str
    line: int | None = None
    key: str = ""
    is_default: bool = False

    @property
    def place(self) -> str:
        """Return the origin without its key, for a text that names the key itself."""
        return self.source if self.line is None else f"{self.source}:{self.line}"

    def named(self, key: str) -> Origin:
        """Return the same place under another key."""
        return dataclasses.replace(self, key=key)

    def __str__(self) -> str:
        return f"{self.place} ({self.key})" if self.key else self.place


COMMAND_LINE = "command line"
DEFAULT = Origin("default", is_default=True)  # of a value that nobody set


@dataclass(frozen=True)
class Sourced(Generic[T]):
    """A value and its origin, so that a message can name both."""

    value: T
    origin: Origin

    def problem(self, rule: str) -> Problem:
        return Problem(origin=self.origin, value=self.value, rule=rule)

    def meaning(self, value: U) -> Sourced[U]:
        """Return what was meant by the value, at the same origin."""
        return Sourced(value, self.origin)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong, as one line: ``file:line: key: value: rule``.

    Args:
        origin: the place to change.
        rule: what must hold and what to change, without a full stop.
        value: the offending value as the user wrote it; omitted when there is none.
    """

    origin: Origin
    rule: str
    value: object = None

    @property
    def key(self) -> str:
        return self.origin.key

    def __str__(self) -> str:
        value = hidden(self.value, secret=is_secret(self.key))
        shown = "" if value is None else f" {_shown(value)}:"
        key = f" {self.key}:" if self.key else ""
        return f"{self.origin.place}:{key}{shown} {self.rule}"


class ConfigError(TrainerError, ValueError):
    """A file, a key or a value is wrong; ``problems`` holds all that were found, one line each."""

    exit_code = 2

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        assert self.problems, "a ConfigError needs at least one problem"
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        # An exception is sent to other ranks as its class and its text; this class is made from
        # problems.
        return ConfigError, (self.problems,)


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return (
        text if len(text) <= 80 else f"{text[:38]}...{text[-39:]}"
    )  # the end of a path says more than its middle
