"""64-bit digests of gradients and weights, the same on every layout.

The digest of a tensor is the sum, modulo 2**64, of the bits of its elements, each times an odd
number of its place. So the digests of parts add up to that of the whole, and a change of a single
element always changes the digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from .base import Shard, Strategy
    from .exact import Exact

_AT_A_TIME = 1 << 16  # elements


def digest(values: Tensor, start: int = 0) -> Tensor:
    """Return the digest of a part of a tensor, as a signed number on the device of the part.

    Args:
        values: the part, which counts in float32.
        start: the place of its first element in the flat tensor.
    """
    flat = values.detach().reshape(-1).float().view(torch.int32)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for elements in torch.split(flat, _AT_A_TIME):
        bits = elements.long()
        odd = _odd_numbers(flat.device)[: bits.numel()]
        total += torch.dot(bits, odd) if bits.is_cpu else (bits * odd).sum()  # no dot on a GPU
        if start:
            total += 2 * start * bits.sum()
        start += bits.numel()
    return total


@cache
def _odd_numbers(device: torch.device) -> Tensor:
    return 2 * torch.arange(_AT_A_TIME, device=device) + 1


class StepDigests:
    """Digests of the steps of a strategy with ``same_bits``.

    Args:
        strategy: prepared. Its gradients are watched from now on. Collective: on every rank.

    Attributes:
        names: of the trainable parameters.
    """

    def __init__(self, strategy: Exact) -> None:
        self._strategy = strategy
        self.names = [name for name, _ in strategy.parameters()]
        # Of this rank's micro-batches, by name. Each parameter counts an odd number of times.
        self._of_micro_batches: list[dict[str, Tensor]] = []
        self._odd = {name: 2 * number + 1 for number, name in enumerate(self.names)}
        self._of_gradients: list[Tensor] = []
        strategy.bits.watch_step = self.note_step
        strategy.watch_gradients(self.note)

    def note(self, name: str, gradient: Tensor) -> None:
        """Add a parameter's gradient of the micro-batch that is computed."""
        if len(self._of_micro_batches) < self._strategy.bits.micro_batches:
            self._of_micro_batches.append({})
        self._of_micro_batches[-1][name] = digest(gradient)

    def note_step(self, gradients: Iterable[Tensor], is_whole: bool) -> None:
        """Take the gradients of a step, this rank's parts of them or whole gradients."""
        if is_whole:
            is_first = self._strategy.accelerator.is_main_process
            self._of_gradients = [digest(g) for g in gradients] if is_first else []
            return
        shards = self._strategy.shards()
        self._of_gradients = [
            _of_shard(shard, gradient) for shard, gradient in zip(shards, gradients, strict=True)
        ]

    def read(self, micro_batches: int) -> dict[str, list[str]]:
        """Return the digests of a step that was made, and forget them. Collective.

        Args:
            micro_batches: of all ranks in the step.
        """
        strategy = self._strategy
        world, rank = strategy.plan.world_size, strategy.accelerator.process_index
        own = len(self._of_micro_batches)
        device = strategy.accelerator.device
        tensors = len(self.names)
        packed = torch.zeros(own * world + 2 * tensors, dtype=torch.int64, device=device)
        if own:
            packed[: own * world][rank::world] = self._sums()
        if self._of_gradients:
            packed[own * world :][:tensors] = torch.stack(self._of_gradients)
        add_weights(packed[own * world + tensors :], strategy, self.names)
        texts = summed(packed, world)
        self._of_micro_batches, self._of_gradients = [], []
        return {
            "micro_batches": texts[:micro_batches],
            "gradients": texts[own * world :][:tensors],
            "weights": texts[own * world + tensors :],
        }

    def _sums(self) -> Tensor:
        """Return a digest of each micro-batch of this rank."""
        found = []
        for by_name in self._of_micro_batches:
            digests = torch.stack([*by_name.values()])
            odd = torch.tensor([self._odd[name] for name in by_name], device=digests.device)
            found.append((digests * odd).sum())
        return torch.stack(found)


def add_weights(found: Tensor, strategy: Strategy, names: Sequence[str]) -> None:
    """Write this rank's part of the digests of trainable weights, in the order of names."""
    places = {name: place for place, name in enumerate(names)}
    for shard in strategy.shards():
        found[places[shard.name]] = _of_shard(shard, shard.tensor)


def summed(digests: Tensor, world: int) -> list[str]:
    """Add up the parts of all ranks, and return the digests as text. Collective."""
    if world > 1:
        dist.all_reduce(digests)
    return [f"{number % (1 << 64):016x}" for number in digests.tolist()]


def _of_shard(shard: Shard, values: Tensor) -> Tensor:
    """Return the digest of values of a shard. Zero on all but the first rank that has the shard."""
    if shard.copy:
        return torch.zeros((), dtype=torch.int64, device=values.device)
    return digest(values, shard.start)
