"""Copies of weights that must be the same to the bit, compared between ranks."""

from __future__ import annotations

import socket
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..errors import TrainerError
from ..hooks import Callback, StepInfo
from ..run import Run
from ..strategies import Strategy
from ..strategies.tensors import local
from ..text import listed

Checksums = Mapping[tuple[str, int], int]  # by name and first element of what a rank holds


class ReplicaCheck(Callback):
    """Compares the ranks' copies of weights bit by bit, every so many steps and before each
    checkpoint.

    Ranks make the same step with the same numbers, so a copy that differs was changed by code that
    does something else on one rank, or by faulty memory, a link or a device; or machines of
    different kinds round differently. One number a tensor is exchanged, over the CPU group.

    Args:
        interval: optimizer steps between two comparisons.

    Raises:
        TrainerError: a copy differs; nothing of it is saved.
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.equal_at: int | None = None  # the last step at which all copies were equal

    def on_step(self, run: Run, info: StepInfo) -> None:
        if info.step % self.interval == 0:
            self._compare(run)

    def on_save(self, run: Run) -> None:
        if self.equal_at != run.step:
            self._compare(run)

    def _compare(self, run: Run) -> None:
        """Raise ``TrainerError`` where copies differ. Collective: call on every rank."""
        if not run.agreement.distributed:
            return

        found = run.agreement.gather((socket.gethostname(), checksums(run.strategy)))
        name, ranks = first_difference([sums for _, sums in found])
        if not ranks:
            self.equal_at = run.step
            return

        places = listed([f"rank {rank} ({found[rank][0]})" for rank in ranks], 8)
        before = "" if self.equal_at is None else f", which they were at step {self.equal_at}"
        raise TrainerError(
            f"step {run.step}: the copies of {name} are not the same bits on all ranks{before}: "
            f"look at {places}; code changes weights otherwise on one rank than on another (in a "
            "forward pass, in a callback), or memory, a link or a device is faulty, or machines of "
            "different kinds round differently. Nothing is saved; resume from a checkpoint of "
            "before, with other code or on other machines. replica_check_every: null leaves the "
            "comparison out"
        )


@torch.no_grad()
def checksums(strategy: Strategy) -> Checksums:
    """Return a checksum of each part of the weights that this rank may hold a copy of; no flipped
    bit is lost in it.
    """
    shards = {shard.name: shard for shard in strategy.shards(trainable=None)}
    sums: dict[tuple[str, int], Tensor] = {}
    for name, parameter in strategy.parameters(trainable=None):
        part = local(parameter.detach())
        if (
            part.numel() and part.numel() == parameter.numel()
        ):  # also what an engine computes with beside its slices
            sums[name, 0] = _sum(part)
        elif part.numel() and shards[name].copies > 1:
            sums[name, shards[name].start] = _sum(part)
    return _read_back(sums)


def _read_back(sums: Mapping[tuple[str, int], Tensor]) -> Checksums:
    """Return sums as numbers; each device is waited for once."""
    keys_on_device = defaultdict[torch.device, list[tuple[str, int]]](list)
    for key, total in sums.items():
        keys_on_device[total.device].append(key)

    # In the order of the sums: the first difference is reported.
    numbers = dict.fromkeys(sums, 0)
    for keys in keys_on_device.values():
        stacked = torch.stack([sums[key] for key in keys])
        for key, number in zip(keys, stacked.tolist(), strict=True):
            numbers[key] = number
    return numbers


def _sum(values: Tensor) -> Tensor:
    """Add up the words of 64 bits: 8 GB/s on one CPU core, where words of 32 bits are cast first,
    at 0.6.
    """
    flat = values.reshape(-1)
    if (
        flat.storage_offset() * flat.itemsize % 8
    ):  # within a buffer of an engine, where no word begins
        flat = flat.clone()
    content = flat.view(torch.uint8)
    whole = len(content) // 8 * 8
    return content[:whole].view(torch.int64).sum() + content[whole:].sum()


def first_difference(ranks: Sequence[Checksums]) -> tuple[str, list[int]]:
    """Return the first tensor whose copies differ, and the ranks with the rarer ones; all that have
    it in a tie.
    """
    for key in dict.fromkeys(key for sums in ranks for key in sums):
        held = {rank: sums[key] for rank, sums in enumerate(ranks) if key in sums}
        (usual, count), *others = Counter(held.values()).most_common()
        if others:
            clear = count > others[0][1]
            return key[0], [rank for rank, value in held.items() if not clear or value != usual]
    return "", []
