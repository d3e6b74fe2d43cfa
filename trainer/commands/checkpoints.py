"""``trainer checkpoints DIR``: list the checkpoints of a run, and which of them can be loaded."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..checkpoint.discover import CheckpointInfo, listing, verify
from ..errors import usage_error
from ..text import columns, size
from .usage import local_path

_HEAD = ("checkpoint", "strategy", "world", "size", "created", "state")


def run(argv: Sequence[str]) -> int:
    """Print the list. Return 0 if all checkpoints are in order, else 1.

    Raises:
        ConfigError: the folder holds no checkpoint.
    """
    parser = argparse.ArgumentParser(prog="trainer checkpoints", description=__doc__)
    parser.add_argument("folder", type=local_path, help="of the run, or of its checkpoints")
    parser.add_argument("--verify", action="store_true", help="read every byte")
    args = parser.parse_args(argv)

    inside = args.folder / "checkpoints"
    checkpoints = listing(inside if inside.is_dir() else args.folder)
    if not checkpoints:
        raise usage_error("", str(args.folder), "holds no checkpoints; give RUN or RUN/checkpoints")
    if args.verify:
        checkpoints = [verify(checkpoint) for checkpoint in checkpoints]
    print("\n".join(columns([_HEAD, *map(_row, checkpoints)])))
    return int(any(checkpoint.problem for checkpoint in checkpoints))


def _row(checkpoint: CheckpointInfo) -> tuple[str, ...]:
    """Return the columns of ``_HEAD``. Most are empty without a readable manifest."""
    facts = [""] * 4
    manifest = checkpoint.manifest
    if manifest:
        facts = [str(manifest[key]) for key in ("strategy", "world_size")]
        facts += [size(checkpoint.bytes), manifest["created"][:19]]
    state = checkpoint.problem or "complete"
    return checkpoint.path.name, *facts, f"damaged: {state}" if checkpoint.broken else state
