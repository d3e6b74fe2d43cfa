"""Which process is the main process: asked before a launch, in a task, and while data is loaded."""

from __future__ import annotations

import sys


def is_main() -> bool:
    """Return whether this is the main process of the job, which has rank 0.

    True in a plain process. Before a launch the rank from the launcher's variables counts. A
    process that loads data is never the main process.
    """
    from .starters import rank_of_process

    return not _loads_data() and rank_of_process() == 0


def _loads_data() -> bool:
    """Return whether this is a process of a DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None
