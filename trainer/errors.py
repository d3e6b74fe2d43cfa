"""All errors that users can meet, and the origins of the values that the messages name.

    TrainerError                 exit code 1
    ├── ConfigError (ValueError)       2    a file, a key or a value is wrong
    ├── LaunchError (ValueError)       2    the run is not as requested
    ├── DataError (ValueError)         1    the data cannot serve this run
    └── CheckpointError (ValueError)   1    files of a run cannot be written or read

A user's mistake is an exception of this tree. A broken invariant is an assert.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from .text import hidden

T = TypeVar("T")
U = TypeVar("U")


class TrainerError(Exception):
    """Base of all errors that are raised on purpose."""

    exit_code = 1
    on_every_rank = True  # all ranks find a wrong file. The first rank reports the file


class LaunchError(TrainerError, ValueError):
    """The processes, devices or strategy that run were not requested."""

    exit_code = 2


class DataError(TrainerError, ValueError):
    """The data cannot serve this run."""


class CheckpointError(TrainerError, ValueError):
    """Files of a run cannot be written or read."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Turn an ``OSError`` of the block, such as a full disk, into a ``CheckpointError``."""
    try:
        yield path
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be written: {error.strerror}; once the path can be written, "
            "resume: auto continues from the newest checkpoint"
        ) from None


@dataclass(frozen=True)
class Origin:
    """The place where a value was set. As text ``file:line (key)`` or ``command line (--flag)``.

    Args:
        source: a file, ``command line``, or another source, such as ``TrainConfig``.
        key: the dotted key or the flag. "" for the source as a whole.
        is_default: nobody has set the value, so any other source overrides the value.
    """

    source: str
    line: int | None = None
    key: str = ""
    is_default: bool = False

    @property
    def place(self) -> str:
        """Return the origin without the key, for a text that names the key itself."""
        return f"{self.source}:{self.line}" if self.line else self.source

    def named(self, key: str) -> Origin:
        """Return the same place under another key."""
        return dataclasses.replace(self, key=key)

    def error(self, rule: str, value: object = None) -> ConfigError:
        """Return the error of a single mistake at this place, as of a ``Problem``."""
        return ConfigError(Problem(origin=self, rule=rule, value=value))

    def __str__(self) -> str:
        return f"{self.place} ({self.key})" if self.key else self.place


COMMAND_LINE = "command line"
DEFAULT = Origin("default", is_default=True)  # of a value that nobody set


def origin_of(origins: Mapping[str, Origin], key: str, otherwise: str = "TrainConfig") -> Origin:
    """Return the origin of a key, of the nearest mapping around the key, or ``otherwise``."""
    part = key
    while part:
        if part in origins:
            return origins[part] if part == key else origins[part].named(key)
        part = part.rpartition(".")[0]
    return Origin(otherwise, key=key)


@dataclass(frozen=True)
class Sourced(Generic[T]):
    """A value and the origin that messages name."""

    value: T
    origin: Origin

    def meaning(self, value: U) -> Sourced[U]:
        """Return another value at the same origin: the meaning of the user's value."""
        return Sourced(value, self.origin)

    def error(self, rule: str) -> ConfigError:
        """Return the error of a value that breaks a rule."""
        return self.origin.error(rule, self.value)

    def disagrees(self, other: Sourced[Any]) -> ConfigError:
        """Return the error of a value that another place gives otherwise."""
        return self.error(f"disagrees with {other.value!r} at {other.origin}; keep one of the two")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A mistake, in one line: ``file:line: key: value: rule``.

    Args:
        origin: the place to change.
        rule: the requirement and the change to make, without a full stop.
        value: as the user wrote the value. None for a missing value.
    """

    origin: Origin
    rule: str
    value: object = None

    def __str__(self) -> str:
        key = self.origin.key
        value = hidden(self.value, key)
        shown = "" if value is None else repr(value)
        if isinstance(value, bool):  # spelled as in YAML
            shown = shown.lower()
        if len(shown) > 80:
            shown = f"{shown[:38]}...{shown[-39:]}"  # the end of a path says more than the middle
        return ": ".join(filter(None, (self.origin.place, key, shown, self.rule)))


class ConfigError(TrainerError, ValueError):
    """A file, a key or a value is wrong. The message has a line for each of ``problems``."""

    exit_code = 2

    def __init__(self, problems: Problem | Sequence[Problem]) -> None:
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        # Pickle, which sends errors to other ranks, would call the class with the text.
        return ConfigError, (self.problems,)


def config_error(
    broken: Mapping[str, tuple[str, Any]], origin: Callable[[str], Origin]
) -> ConfigError:
    """Return the error of several mistakes: the rules and the wrong values by key."""
    return ConfigError(
        [
            Problem(origin=origin(key), rule=rule, value=value)
            for key, (rule, value) in broken.items()
        ]
    )


def usage_error(key: str, value: object, rule: str) -> ConfigError:
    """Return the error for a wrong word of the command line, under an option or ""."""
    return Origin(COMMAND_LINE, key=key).error(rule, value)
