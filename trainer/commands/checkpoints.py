"""``trainer checkpoints DIR``: list the checkpoints of a run, and which of them can be loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..checkpoint.discover import listing, verify
from ..errors import usage_error
from ..text import columns, size
from .usage import only_folders


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    verify: Annotated[bool, "read every byte"] = False


def run(options: Options, settings: Sequence[str], words: Sequence[str]) -> int:
    """Print the list. Return 0 if all checkpoints are in order, else 1."""
    (folder,) = only_folders(settings, words)
    inside = Path(folder, "checkpoints")
    checkpoints = listing(inside if inside.is_dir() else Path(folder))
    if not checkpoints:
        raise usage_error("", folder, "holds no checkpoints; give RUN or RUN/checkpoints")

    rows = [["checkpoint", "strategy", "world", "size", "created", "state"]]
    for checkpoint in checkpoints:
        if options.verify:
            verify(checkpoint)
        fact = checkpoint.manifest.get  # of a manifest that is empty if the file cannot be read
        rows.append(
            [
                checkpoint.path.name,
                fact("strategy", ""),
                str(fact("world_size", "")),
                size(checkpoint.bytes),
                fact("created", "")[:19],
                "damaged: " * checkpoint.broken + (checkpoint.problem or "complete"),
            ]
        )
    print(columns(rows))
    return any(checkpoint.problem for checkpoint in checkpoints)
