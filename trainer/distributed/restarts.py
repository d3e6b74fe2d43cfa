"""Attempts of one job: with ``--max_restarts`` launchers start all ranks again if any fails."""

from __future__ import annotations

import re

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from .started_by import env_number, launcher_line


def restarts() -> int:
    """Return how often the launcher has started this job again."""
    return env_number("TORCHELASTIC_RESTART_COUNT")


def connect_attempt(backend: str) -> None:
    """Connect the ranks of a job that was started again, under names of this attempt. Collective.

    The store of torchrun and accelerate has addresses of processes that have ended. Several agents
    of c10d or etcd count their attempts differently if one joined later, and are left to torch.
    """
    is_alone = env_number("WORLD_SIZE") <= 1
    if is_alone or not restarts() or dist.is_initialized() or _has_several_elastic_agents():
        return

    store, rank, world_size = next(rendezvous("env://"))
    store = PrefixStore(f"attempt_{restarts()}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)


def _has_several_elastic_agents() -> bool:
    """Return whether several launchers share this job, which may join and leave it."""
    if env_number("GROUP_WORLD_SIZE") <= 1:
        return False
    return any(re.search(r"c10d|etcd", word) for word in launcher_line())
