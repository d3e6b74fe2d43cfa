"""The command ``trainer check``, in a process of its own or in that of the test."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from launchers import BIN, ROOT, clean_environment


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command answered."""

    returncode: int
    stdout: str
    stderr: str


Check = Callable[..., Answer]


def trainer_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run ``trainer`` in a process of its own."""
    full = [str(BIN / "trainer"), *words]
    return subprocess.run(
        full, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False
    )
