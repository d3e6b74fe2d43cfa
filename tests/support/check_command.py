"""The command ``trainer check``, in a process of its own or in that of the test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from launchers import BIN, completed


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command answered."""

    returncode: int
    stdout: str
    stderr: str


Check = Callable[..., Answer]


def trainer_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run ``trainer`` in a process of its own."""
    return completed([str(BIN / "trainer"), *words])
