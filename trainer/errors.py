"""Every error that users can meet.

    TrainerError                 exit code 1
    ├── ConfigError (ValueError)       2    a file, a key or a value is wrong
    ├── LaunchError (ValueError)       2    what runs is not what was asked for
    ├── DataError (ValueError)         1    the data cannot serve this run
    └── CheckpointError (ValueError)   1    files of a run cannot be written or read

Users' mistakes are exceptions of this tree; broken invariants are asserts.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def _shown(value: object) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 80 else text[:77] + "..."
