"""Tensors of which each rank has a copy: buffers, and under some strategies parameters.

No strategy shards buffers or exchanges them in a step. ``sync`` makes the copies the same.
Copies of parameters must be the same at any time: ``refuse_drift`` compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import xxhash
from accelerate.utils import broadcast
from torch import Tensor, nn

from ..data.digest import bytes_of
from ..distributed.same import same_on_all_ranks
from ..errors import LaunchError
from ..private.torch import own_buffers

if TYPE_CHECKING:
    from accelerate import Accelerator


# A module, the name of a buffer there, the buffer, and a copy of the values.
Before = list[tuple[nn.Module, str, Tensor | None, Any]]


@contextmanager
def restored_buffers(model: nn.Module) -> Iterator[None]:
    """Put the buffers back after a batch that does not count."""
    before = buffers_before(model.modules())
    yield
    put_back(before)


def buffers_before(modules: Iterable[nn.Module]) -> Before:
    """Return the buffers of a prepared model and copies, for ``put_back`` after a step left out.

    The cost is a copy of all buffers in each step. Nothing tells which buffers a forward pass
    changes: torch does not count the writes of kernels to BatchNorm's statistics.
    """
    return [
        (module, key, buffer, None if buffer is None else buffer.clone())
        for module in modules
        for key, buffer in own_buffers(module).items()
        if buffer is None or buffer.layout == torch.strided
    ]


def put_back(before: Before) -> None:
    """Give the buffers their values back. A buffer that a pass has replaced comes back."""
    for module, key, buffer, values in before:
        own_buffers(module)[key] = buffer
        if buffer is not None:
            buffer.copy_(values)


@torch.no_grad()
def sync(model: nn.Module, accelerator: Accelerator) -> None:
    """Make the buffers the same on every rank: the mean of floating-point buffers, or rank 0's."""
    if accelerator.num_processes == 1:
        return
    # A sparse buffer (the edges of a graph) is a constant. No collective takes it.
    for buffer in model.buffers():
        if buffer.layout != torch.strided or not buffer.numel():
            continue
        if buffer.is_floating_point():
            buffer.copy_(accelerator.reduce(buffer.double() / accelerator.num_processes, "sum"))
        else:
            # As bytes: gloo and NCCL know no 16-bit integers.
            sent = broadcast(buffer.reshape(-1).view(torch.uint8))
            buffer.copy_(sent.view(buffer.dtype).view(buffer.shape))


def refuse_drift(shards: Iterable[Any], gather: Callable[[Any], list[Any]]) -> None:
    """Raise ``LaunchError`` if ranks have other values of the same range of a parameter.

    Collective: call on every rank. 100 million float32 parameters take 22 ms of a CPU core.
    """
    facts = {}
    starts = []
    for shard in shards:
        if shard.copies > 1:
            facts[f"the checksum of {shard.name}"] = xxhash.xxh3_64_hexdigest(
                bytes_of(shard.tensor)
            )
            starts.append(shard.start)
    difference = same_on_all_ranks(facts, gather, part=tuple(starts))
    if difference:
        raise LaunchError(
            f"{difference}: code has changed a parameter by numbers of a process alone (its "
            "batch, max_norm of an embedding, random numbers of an optimizer): keep such values in "
            "buffers, average the numbers over all processes, or draw by a generator with a seed"
        )
