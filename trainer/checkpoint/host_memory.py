"""The host memory that snapshots are copied to; it stays from one save to the next.

A copy from a GPU runs at full speed, and without the host waiting for it, to page-locked memory
only. torch's own page-locked tensors are rounded up to powers of two, up to twice the state of a
large model. So a few large blocks of exactly the size that is needed are locked, and cut into
tensors; locking takes long, for the system has to find the pages, and is done at the first save.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..text import size

# Each tensor begins at a multiple of so many bytes: what a GPU copies at full speed, and more than
# any dtype needs.
_ALIGNMENT = 256

# The first save makes one block. What later ones have beside it (state that an optimizer made
# meanwhile) gets blocks of its own; a further one replaces them all.
_MOST_BLOCKS = 3

# Memory that is locked for all devices of the process (CUDA's flag of that name).
_PORTABLE = 1


def lock_pages(block: Tensor) -> bool:
    """Lock the pages of a block of host memory; return whether that was possible.

    As torch does it for its distributed state dictionaries (``cudaHostRegister``). It fails where
    the system limits locked memory: containers, ``ulimit -l``.
    """
    try:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = runtime.cudaHostRegister(block.data_ptr(), block.nbytes, _PORTABLE)
    except RuntimeError:
        return False
    if int(code) == 0:
        return True
    # CUDA reports a failed call once more, at the next launch of a kernel.
    with contextlib.suppress(RuntimeError):
        torch.ones(1, device="cuda")
    return False


def unlock_pages(block: Tensor) -> None:
    """Release what ``lock_pages`` has locked."""
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    runtime.cudaHostUnregister(block.data_ptr())


@dataclass(frozen=True, kw_only=True)
class _Block:
    """A piece of host memory for copies from a GPU.

    Args:
        memory: its bytes.
        locked: whether its pages are locked.
    """

    memory: Tensor
    locked: bool


class HostMemory:
    """Places in host memory for the tensors of a snapshot, by their keys.

    Args:
        say: shows a notice.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._may_lock = True
        self._blocks: list[_Block] = []
        self._places: dict[str, Tensor] = {}

    def places(self, tensors: Sequence[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Return a place for each tensor, of its shape and dtype.

        Nobody may read the places of an earlier call any more: they are given out again.
        """
        new = [item for item in tensors if not self._has_place(*item)]
        of_gpu = [(key, tensor) for key, tensor in new if tensor.is_cuda]
        if of_gpu and len(self._blocks) == _MOST_BLOCKS:
            self._release()
            of_gpu = [(key, tensor) for key, tensor in tensors if tensor.is_cuda]
        if of_gpu:
            self._add_block(of_gpu)

        for key, tensor in new:
            if not tensor.is_cuda:
                self._places[key] = torch.empty(tensor.shape, dtype=tensor.dtype)
        return {key: self._places[key] for key, _ in tensors}

    def _has_place(self, key: str, tensor: Tensor) -> bool:
        place = self._places.get(key)
        return place is not None and place.shape == tensor.shape and place.dtype == tensor.dtype

    def _release(self) -> None:
        """Give up all blocks."""
        for block in self._blocks:
            if block.locked:
                unlock_pages(block.memory)
        self._blocks = []
        self._places = {}

    def _add_block(self, tensors: Sequence[tuple[str, Tensor]]) -> None:
        """Allocate one block for tensors of a GPU, and cut it into their places."""
        starts = []
        total = 0
        for _, tensor in tensors:
            starts.append(total)
            total += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT

        memory = torch.empty(total, dtype=torch.uint8)
        self._blocks.append(_Block(memory=memory, locked=self._lock(memory)))
        for (key, tensor), start in zip(tensors, starts, strict=True):
            part = memory[start : start + tensor.nbytes]
            self._places[key] = part.view(tensor.dtype).view(tensor.shape)

    def _lock(self, memory: Tensor) -> bool:
        """Lock a block's pages; say once where that fails, and do without from then on."""
        if not self._may_lock or not memory.numel():
            return False
        if lock_pages(memory):
            return True
        self._may_lock = False
        self._say(
            f"{size(memory.nbytes)} of host memory for checkpoints cannot be page-locked: training "
            "waits longer for each save; raise the limit (ulimit -l unlimited, or the container's)"
        )
        return False
