"""Copies batches to a GPU beside the work that is queued there.

The host is ahead of the device: when it comes to a micro-batch, the device still computes the one
before, or the step before. On the stream that computes, the copy would be queued behind all that,
and the next forward pass behind the copy. On a stream of its own it begins at once, and is done by
the time that the next forward pass begins. Where something waits for the device in a step (a step
that is logged), there is nothing left to copy beside.

Nothing is fetched earlier than without it: what a window holds, the position in the data and what
loading draws stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor


class BatchCopies:
    """Sends batches to a GPU on a stream of its own.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def send(self, batch: Any) -> Any:
        """Return the batch on the device; what is launched after this call finds it complete.

        A batch with other things than tensors of the host in it is copied where all else runs.
        """
        if not is_on_host(batch):
            return send_to_device(batch, self.device, non_blocking=True)

        with torch.cuda.stream(self.stream):
            sent = send_to_device(batch, self.device, non_blocking=True)

        computing = torch.cuda.current_stream(self.device)
        computing.wait_stream(self.stream)
        for tensor in tensors_of(sent):
            # The memory belongs to the stream that copies. Without this it would be given to the
            # next batch as soon as Python drops this one, while kernels still wait to read it.
            if tensor.is_cuda:
                tensor.record_stream(computing)
        return sent


def is_on_host(batch: Any) -> bool:
    """Return whether all of a batch can be seen, and all its tensors are plain ones of the host."""
    if isinstance(batch, Tensor):
        is_plain = type(batch) is Tensor and batch.layout == torch.strided
        return is_plain and batch.device.type == "cpu"
    if isinstance(batch, Mapping):
        return all(is_on_host(value) for value in batch.values())
    if isinstance(batch, tuple | list):
        return all(is_on_host(value) for value in batch)
    return not hasattr(batch, "to")  # whatever else would be sent: its tensors are not known


def tensors_of(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors in mappings and sequences, at any depth."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_of(value)
    elif isinstance(batch, tuple | list):
        for value in batch:
            yield from tensors_of(value)
