"""The command ``trainer check``, as tests ask for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command answered."""

    returncode: int
    stdout: str
    stderr: str


Check = Callable[..., Answer]
