"""The checkpoint that a run begins with, also a run that the launcher has started again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .discover import CheckpointInfo


@dataclass(frozen=True, kw_only=True)
class Start:
    """The beginning of a run.

    Args:
        found: the checkpoint to resume from. None to begin at step 0.
        passed_over: newer checkpoints that are damaged.
        continues: whether ``output_dir`` may be the used folder of a run that is continued.
    """

    found: CheckpointInfo | None = None
    passed_over: tuple[CheckpointInfo, ...] = ()
    continues: bool = False

    @property
    def step(self) -> int:
        return self.found.step if self.found else 0

    @property
    def samples(self) -> int:
        return int(self.found.manifest["samples"]) if self.found else 0


def how_to_resume(folder: Path) -> str:
    """Return the command that resumes a job that ends now from the newest checkpoint."""
    from .discover import listing

    for info in listing(folder):
        if not info.problem:
            return f"to resume from {info.path}: start the same command with --resume auto"
    return "there is no checkpoint to resume from"
