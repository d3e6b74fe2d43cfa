"""The results of a task's building methods, checked."""

from __future__ import annotations

from typing import TypeVar

from ..errors import LaunchError
from ..task import Task

T = TypeVar("T")


def returned(value: object, kind: type[T], task: Task, method: str) -> T:
    """Return the result of a task's method. Raises ``LaunchError`` for another kind."""
    if isinstance(value, kind):
        return value
    raise LaunchError(
        f"{type(task).__qualname__}.{method} must return: {kind.__name__}. "
        f"It returned a {type(value).__name__}"
    )
