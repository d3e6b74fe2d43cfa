"""Two page-locked blocks of host memory, through which files are read onto a GPU.

A copy to a GPU runs at full speed, and without the host waiting for it, from page-locked memory
only. With two blocks the host reads the file into one of them while the GPU copies the other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .host_memory import lock_pages, unlock_pages

# Bytes of a block. A file that the system has in memory is read at 8.2 GB/s into 1 MiB, 7.9 into
# 8 MiB, 6.2 into 32 MiB and 5.8 into 64 MiB: larger blocks do not stay in the processor's cache
# (2026-11-24, x86). Reading 8 MiB takes 1 ms, beside which launches and events are little.
BLOCK = 8 << 20


class Staging:
    """Two blocks that are filled in turn; they are locked when the first one is asked for."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None  # of both blocks
        self._copied: list[torch.cuda.Event] = []  # of each block: its last copy is done
        self._stream: torch.cuda.Stream | None = None  # that copies
        self._next = 0
        self._may_lock = True

    def is_ready(self) -> bool:
        """Lock the blocks where that was not done yet; return whether they are locked."""
        if self._memory is None and self._may_lock:
            memory = torch.empty(2 * BLOCK, dtype=torch.uint8)
            self._may_lock = lock_pages(memory)
            if self._may_lock:
                self._memory = memory
                self._copied = [torch.cuda.Event(), torch.cuda.Event()]  # type: ignore[no-untyped-call]
        return self._memory is not None

    def block(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return the next block, as so many elements; wait until its last copy is done.

        ``to_gpu`` has to follow before the next call.
        """
        assert self._memory is not None, "the blocks are not locked"
        self._copied[self._next].synchronize()
        begin = self._next * BLOCK
        return self._memory[begin : begin + count * dtype.itemsize].view(dtype)

    def to_gpu(self, block: Tensor, like: Tensor) -> Tensor:
        """Begin to copy what was read into a block.

        Args:
            block: as ``block`` returned it.
            like: a tensor of the GPU that is meant.

        Returns:
            The same elements on the GPU. What is launched there from now on finds them complete.
        """
        on_gpu = like.new_empty(len(block), dtype=block.dtype)
        on_gpu.copy_(block, non_blocking=True)
        self._stream = torch.cuda.current_stream(like.device)
        self._copied[self._next].record(self._stream)
        self._next = 1 - self._next
        return on_gpu

    def release(self) -> None:
        """Wait for the copies and what was made of them, and give the blocks up."""
        if self._stream is not None:
            self._stream.synchronize()
        if self._memory is not None:
            unlock_pages(self._memory)
            self._memory = None
