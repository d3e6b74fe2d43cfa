"""Which process is the main process: asked before a launch, in a task, and while data is loaded."""

from __future__ import annotations

import os
import sys


def is_main() -> bool:
    """Return whether this is the main process, of rank 0. Before a launch variables tell."""
    from .rank_variables import by_starter

    data = sys.modules.get("torch.utils.data")
    if data and data.get_worker_info():
        return False  # a process of a DataLoader
    rank = os.environ.get("RANK") or by_starter(os.environ)[1].get("RANK", "0")
    return int(rank) == 0
