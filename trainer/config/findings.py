"""Problems and notices that are found while configs and launch files are read and compared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import ConfigError, Origin, Problem, Sourced

M = TypeVar("M", bound=BaseModel)


class Findings:
    """A collector of ``problems``, which end the run together, and of ``notices``."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notices: list[str] = []

    def refuse(self, found: Sourced[Any], rule: str) -> None:
        """Record a problem. Only the first problem of a value counts."""
        if all(problem.origin != found.origin for problem in self.problems):
            self.problems.append(Problem(origin=found.origin, value=found.value, rule=rule))

    def end(self) -> None:
        """Raise ConfigError if there are problems."""
        if self.problems:
            raise ConfigError(self.problems)

    def disagree(self, found: Sourced[Any], other: Sourced[Any]) -> None:
        """Record that two places give different values of a key."""
        self.refuse(found, f"disagrees with {other.value!r} at {other.origin}; keep one of the two")

    def merge(self, settings: dict[str, Sourced[Any]], others: Mapping[str, Sourced[Any]]) -> None:
        """Add values to others, before which defaults do not count. Record a disagreement."""
        for key, found in others.items():
            other = settings.setdefault(key, found)
            if other.value != found.value and not found.origin.is_default:
                self.disagree(found, other)

    def fail(self, found: Sourced[Any], rule: str) -> NoReturn:
        """Record a problem, and raise ConfigError with all problems."""
        self.refuse(found, rule)
        raise ConfigError(self.problems)

    def read(self, model: type[M], values: Mapping[str, Any], origin: Callable[[str], Origin]) -> M:
        """Return values as a pydantic model.

        Raises:
            ConfigError: with the origin of each value that does not fit.
        """
        try:
            return model.model_validate_json(json.dumps(values))
        except ValidationError as error:
            from .pydantic_errors import broken_rules

            for key, (rule, value) in broken_rules(error, values, model.model_fields).items():
                self.refuse(Sourced(value, origin(key)), rule)
            raise ConfigError(self.problems) from None
