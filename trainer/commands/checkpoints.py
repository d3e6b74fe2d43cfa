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


def run(argv: Sequence[str]) -> int:
    """Return 0 where all are in order, 1 where some are damaged or cannot be read."""
    parser = argparse.ArgumentParser(prog="trainer checkpoints", description=__doc__)
    parser.add_argument(
        "folder", type=local_path, help="a run's output_dir, or the folder with its checkpoints"
    )
    parser.add_argument(
        "--verify", action="store_true", help="read every byte; otherwise manifests and sizes only"
    )
    args = parser.parse_args(argv)
    inside = args.folder / "checkpoints"
    found = listing(inside if os.path.isdir(inside) else args.folder)
    if not found:
        raise CheckpointError(f"{args.folder}: holds no checkpoints")
    if args.verify:
        found = [verify(one) for one in found]
    print(
        "\n".join(
            columns(
                [("checkpoint", "strategy", "world", "size", "age", "state"), *map(_row, found)]
            )
        )
    )
    return int(any(one.problem for one in found))


def _row(found: CheckpointInfo) -> tuple[str, ...]:
    manifest = found.manifest
    if not manifest:
        return found.path.name, "", "", "", "", _state(found)
    age = datetime.now(timezone.utc) - datetime.fromisoformat(manifest["created"])
    return (
        found.path.name,
        str(manifest["strategy"]),
        str(manifest["world_size"]),
        size(found.bytes),
        _age(age.total_seconds()),
        _state(found),
    )


def _state(found: CheckpointInfo) -> str:
    return f"damaged: {found.problem}" if found.broken else found.problem or "complete"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
