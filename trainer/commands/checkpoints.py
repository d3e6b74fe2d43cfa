"""``trainer checkpoints DIR``: list the checkpoints of a run, and which of them can be loaded."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from datetime import datetime, timezone

from ..checkpoint.discover import CheckpointInfo, listing, verify
from ..errors import CheckpointError
from ..text import columns, size
from .usage import local_path

_HEAD = ("checkpoint", "strategy", "world", "size", "age", "state")


def run(argv: Sequence[str]) -> int:
    """Print the list; return 0 where all are in order, 1 where any is damaged or cannot be read.

    Raises:
        CheckpointError: the folder holds no checkpoint.
    """
    parser = argparse.ArgumentParser(prog="trainer checkpoints", description=__doc__)
    parser.add_argument(
        "folder", type=local_path, help="a run's output_dir, or the folder with its checkpoints"
    )
    parser.add_argument(
        "--verify", action="store_true", help="read every byte; otherwise manifests and sizes only"
    )
    args = parser.parse_args(argv)

    inside = args.folder / "checkpoints"
    checkpoints = listing(inside if os.path.isdir(inside) else args.folder)
    if not checkpoints:
        raise CheckpointError(f"{args.folder}: holds no checkpoints")
    if args.verify:
        checkpoints = [verify(checkpoint) for checkpoint in checkpoints]

    rows = [_HEAD, *map(_row, checkpoints)]
    print("\n".join(columns(rows)))
    any_problem = any(checkpoint.problem for checkpoint in checkpoints)
    return 1 if any_problem else 0


def _row(checkpoint: CheckpointInfo) -> tuple[str, ...]:
    """Return the columns of ``_HEAD``; most are empty where there is no readable manifest."""
    name, state = checkpoint.path.name, _state(checkpoint)
    manifest = checkpoint.manifest
    if not manifest:
        return name, "", "", "", "", state

    age = datetime.now(timezone.utc) - datetime.fromisoformat(manifest["created"])
    return (
        name,
        str(manifest["strategy"]),
        str(manifest["world_size"]),
        size(checkpoint.bytes),
        _age(age.total_seconds()),
        state,
    )


def _state(checkpoint: CheckpointInfo) -> str:
    if checkpoint.broken:
        return f"damaged: {checkpoint.problem}"
    return checkpoint.problem or "complete"


def _age(seconds: float) -> str:
    """Return a duration in the largest unit of which it has at least two: ``3 h``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"

    return f"{seconds:.0f} s"
