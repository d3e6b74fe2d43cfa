"""``trainer checkpoints DIR``: list the checkpoints of a run, and which of them can be loaded."""

from __future__ import annotations

from collections.abc import Sequence

from ..checkpoint.discover import listing, verify
from ..errors import usage_error
from ..text import columns, size
from .usage import command_parser, local_path


def run(argv: Sequence[str]) -> int:
    """Print the list. Return 0 if all checkpoints are in order, else 1.

    Raises:
        ConfigError: the folder holds no checkpoint.
    """
    parser = command_parser("checkpoints", __doc__)
    parser.add_argument("folder", type=local_path, help="of the run, or of its checkpoints")
    parser.add_argument("--verify", action="store_true", help="read every byte")
    args = parser.parse_args(argv)

    inside = args.folder / "checkpoints"
    checkpoints = listing(inside if inside.is_dir() else args.folder)
    if not checkpoints:
        raise usage_error("", str(args.folder), "holds no checkpoints; give RUN or RUN/checkpoints")

    rows = [["checkpoint", "strategy", "world", "size", "created", "state"]]
    for checkpoint in checkpoints:
        if args.verify:
            verify(checkpoint)
        fact = checkpoint.manifest.get  # of a manifest that is empty if the file cannot be read
        state = checkpoint.problem or "complete"
        rows.append(
            [
                checkpoint.path.name,
                fact("strategy", ""),
                str(fact("world_size", "")),
                size(checkpoint.bytes),
                fact("created", "")[:19],
                f"damaged: {state}" if checkpoint.broken else state,
            ]
        )
    print("\n".join(columns(rows)))
    return int(any(checkpoint.problem for checkpoint in checkpoints))
