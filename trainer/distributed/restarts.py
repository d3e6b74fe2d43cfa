"""Attempts of one job: torchrun, and accelerate by it, start all ranks again where one fails
(``--max_restarts``).
"""

from __future__ import annotations

import os
import re

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from .launcher import launcher_processes


def restarts() -> int:
    """Return how often the launcher has started this job again."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)


def connect_attempt(backend: str) -> None:
    """Connect the ranks of a job that was started again, under names of this attempt's own.
    Collective.

    One store serves all attempts of torchrun and accelerate, and in it torch finds the addresses of
    processes that are
    gone: then ranks wait for them for ever. Several agents of c10d or etcd count other attempts
        where one came later,
    so they are left to torch.
    """
    alone = int(os.environ.get("WORLD_SIZE") or 1) == 1
    if alone or not restarts() or dist.is_initialized():
        return
    named = " ".join(word for process in launcher_processes()[:1] for word in process.cmdline())
    if int(os.environ.get("GROUP_WORLD_SIZE") or 1) > 1 and re.search(r"c10d|etcd", named):
        return
    store, rank, world_size = next(rendezvous("env://"))
    attempt = PrefixStore(f"attempt_{restarts()}", store)
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=world_size)
