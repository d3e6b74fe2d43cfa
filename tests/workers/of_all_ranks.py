"""What the ranks of a job have found, together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch.distributed as dist


def of_all(mine: Any) -> list[Any]:
    """Return what every rank gives, in rank order. Collective: call on every rank."""
    if not dist.is_initialized():
        return [mine]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def leave(path: Path, found: Any) -> None:
    """Write a file of JSON, on the first rank alone."""
    write(path, json.dumps(found))


def write(path: Path, text: str) -> None:
    """Write a file, on the first rank alone."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        path.write_text(text)
