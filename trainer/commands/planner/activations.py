"""Count what a forward pass keeps for its backward pass, in one probing pass: for real, or without
memory and time.

The tensors that autograd saves are counted where they are saved (``saved_tensors_hooks``), each
storage once, without parameters and buffers. With recomputation (activation checkpointing) each
block of the model keeps its input only, and one block at a time the rest. What lives within one
operation, and the gradients of activations, are not counted: the largest saved tensor is added once
for them. Measured on 2026-11-21 (two x86 CPU cores, torch 2.13) with the profiler's allocations of
one forward and backward pass: activations and gradients together are 0 to 12 % above the true peak
(digits CNN fp32 +12 %, small Llama fp32 +7 %, autocast bf16 +9 %, bf16 0 %).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Activations:
    """The bytes of one micro-batch on one rank.

    Args:
        saved: by autograd, in the whole forward pass.
        recomputed: the same where each block keeps its input only; equal where the model has no row
            of blocks.
    """

    saved: int
    recomputed: int


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """List the repeated layers of a model: the children of its largest ``ModuleList``, if there is
    one.
    """
    lists = [
        module
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len(module) > 1
    ]
    largest = max(
        lists, key=lambda blocks: sum(p.numel() for p in blocks.parameters()), default=None
    )
    return list(largest or [])


def largest_unit(model: nn.Module) -> int:
    """Count the elements of the largest block, or of all outside of blocks: what sharding gathers
    at once.
    """
    blocks = [sum(p.numel() for p in block.parameters()) for block in blocks_of(model)]
    return max([*blocks, sum(p.numel() for p in model.parameters()) - sum(blocks)])


def probe(model: nn.Module, forward: Callable[[], Tensor]) -> Activations:
    """Run ``forward`` once and count what it saves.

    Args:
        forward: computes a loss with ``model``; under a ``FakeTensorMode`` it costs neither memory
            nor arithmetic.
    """
    counter = _Counter(model)
    with (
        counter.watching(blocks_of(model)),
        torch.autograd.graph.saved_tensors_hooks(counter.pack, lambda kept: kept),
    ):
        forward()
    saved = sum(counter.saved.values())
    largest = max(counter.saved.values(), default=0)
    in_blocks = sum(counter.within)
    recomputed = saved - in_blocks + sum(counter.inputs) + max(counter.within, default=0)
    return Activations(saved=saved + largest, recomputed=min(saved, recomputed) + largest)


class _Counter:
    """A count of the bytes that autograd saves: of all storages, and of those within each block."""

    def __init__(self, model: nn.Module) -> None:
        held = [*model.parameters(), *model.buffers()]
        self.own = {_storage(tensor) for tensor in held}
        self.saved: dict[int, int] = {}
        self.kept: list[
            Tensor
        ] = []  # so that no storage is counted under the address of one that is gone
        self.within: list[int] = []
        self.inputs: list[int] = []
        self.inside = False

    def pack(self, tensor: Tensor) -> Tensor:
        """Count a tensor that is saved; returns it."""
        key = _storage(tensor)
        if key not in self.own and key not in self.saved:
            self.saved[key] = tensor.untyped_storage().nbytes()
            self.kept.append(tensor)
            if self.inside:
                self.within[-1] += self.saved[key]
        return tensor

    @contextlib.contextmanager
    def watching(self, blocks: list[nn.Module]) -> Iterator[None]:
        """Note which block is running."""

        def enter(block: nn.Module, args: Any, kwargs: Any) -> None:
            inputs = [
                value
                for value in (*args, *kwargs.values())
                if isinstance(value, Tensor) and value.requires_grad
            ]
            self.inputs.append(sum(value.untyped_storage().nbytes() for value in inputs))
            self.within.append(0)
            self.inside = True

        def leave(block: nn.Module, args: Any, output: Any) -> None:
            self.inside = False

        hooks = [block.register_forward_pre_hook(enter, with_kwargs=True) for block in blocks]
        hooks += [block.register_forward_hook(leave) for block in blocks]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
