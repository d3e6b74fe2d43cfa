"""Be one rank of a contender: ``python -m benchmarks.peers.contenders FOLDER NAME
MODULE:FUNCTION``.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from ..turns import Turns
from ..work import Work


def main() -> None:
    folder, name, place = sys.argv[1:]
    work = Work.read(folder)
    module, _, function = place.partition(":")
    turns = Turns(name, work)
    weights = getattr(importlib.import_module(f".{module}", __package__), function)(work, turns)
    if work.rank == 0:
        kept = {key: tensor.detach().float().clone() for key, tensor in weights.items()}
        torch.save(kept, Path(folder) / f"{name}.pt")
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # processes that used gloo often abort where they end by themselves


if __name__ == "__main__":
    main()
