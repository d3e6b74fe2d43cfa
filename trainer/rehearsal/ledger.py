"""The memory of a device over time: the storages that exist, by kind and phase."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..strategies.tensors import local
from .lines import is_for_exchange, line

# The kinds of a device's memory.
PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer"
ACTIVATIONS = "activations"
EXCHANGED = "collectives"
KINDS = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, EXCHANGED)
_GUESSES = (ACTIVATIONS, EXCHANGED)


@dataclass(eq=False, slots=True)
class Block:
    """The memory of a storage. The kind is a guess until somebody claims the storage.

    Args:
        window: the optimizer step that asked for the storage. 0 before the first, -1 if the
            kind is no guess.
    """

    kind: str
    window: int
    bytes: int = 0


class Ledger:
    """Records each storage on a type of device from its first tensor to its end."""

    live = most = window = 0
    _phase = ""

    def __init__(self, device: str) -> None:
        self.device = device
        self.line_of_node: dict[int, str] = {}
        self._blocks: dict[int, Block] = {}
        # Changes in bytes in their order: the phase, and the line if the phase has not had more.
        self._events: list[tuple[str, Block, int, str | None]] = []
        self._most_of_phase: dict[str, int] = {}
        self._record_resizes()

    # -- recording --------------------------------------------------------------------------------

    def enter(self, phase: str) -> None:
        """Begin a phase. "" is no phase, and its memory is not reported."""
        self._phase = phase
        self._resize(Block(PARAMETERS, 0), 0)  # a phase that asks for nothing has its memory, too

    def record(self, tensor: Tensor) -> None:
        """Record the storage of a tensor, if the storage is new."""
        if tensor.device.type != self.device:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._blocks:
            block = Block(EXCHANGED if is_for_exchange() else ACTIVATIONS, self.window)
            self._blocks[key] = block
            weakref.finalize(storage, self._free, key)
            self._resize(block, storage.nbytes())

    def _record_resizes(self) -> None:
        """Record new sizes of storages. FSDP2 frees gathered parameters by the size 0."""
        resize = torch.UntypedStorage.resize_

        def resize_and_record(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            block = self._blocks.get(storage._cdata)
            if block:
                self._resize(block, storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resize_and_record  # type: ignore[assignment, method-assign]

    def _free(self, key: int) -> None:
        self._resize(self._blocks.pop(key), 0)

    def _resize(self, block: Block, new: int) -> None:
        change = new - block.bytes
        block.bytes = new
        self.live += change
        self.most = max(self.most, self.live)
        place = None
        if self.live > self._most_of_phase.get(self._phase, -1):
            self._most_of_phase[self._phase] = self.live
            place = self._line()
        self._events.append((self._phase, block, change, place))

    def note_node(self) -> None:
        """Remember the line of the operation that runs, for its backward pass."""
        if torch.is_grad_enabled():
            # The node of the operation exists already.
            next_number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
            self.line_of_node[next_number - 1] = line()

    def _line(self) -> str:
        """Return the line that runs, and in a backward pass the line of the forward pass."""
        node = torch._C._current_autograd_node()
        return line() or (node and self.line_of_node.get(node._sequence_nr())) or ""

    # -- kinds ------------------------------------------------------------------------------------

    def claim(self, kind: str, tensors: Iterable[Any]) -> None:
        """Say the kind of storages. A kind that was said before stays, but for ``EXCHANGED``."""
        for tensor in tensors:
            if isinstance(tensor, Tensor):
                block = self._blocks.get(local(tensor).untyped_storage()._cdata)
                if block and block.kind in _GUESSES:
                    block.kind = kind
                    block.window = -1

    def claim_new(self, kind: str) -> None:
        """Say the kind of all memory that this optimizer step has asked for and not freed."""
        for block in self._blocks.values():
            if block.bytes and block.window == self.window:
                block.kind = kind
                block.window = -1

    # -- report -----------------------------------------------------------------------------------

    def phases(self) -> dict[str, dict[str, Any]]:
        """Return the memory by phase, in the order in which the phases began.

        ``at_end`` and ``at_most`` have the bytes by kind at the end and at the moment of the most,
        for which ``line`` asked.
        """
        now = dict.fromkeys(KINDS, 0)
        phases: dict[str, dict[str, Any]] = defaultdict(dict)
        for name, block, change, place in self._events:
            now[block.kind] += change
            phase = phases[name]
            phase["at_end"] = dict(now)
            if place is not None:
                phase.update(most=sum(now.values()), at_most=dict(now), line=place)
        del phases[""]
        return phases
