"""The memory of a device over time: the storages that exist, by kind and phase."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
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


@dataclass
class Phase:
    """The memory by kind at the end and at the moment of the most, for which ``line`` asked."""

    line: str = ""
    most: int = -1
    at_most: dict[str, int] = field(default_factory=dict)
    at_end: dict[str, int] = field(default_factory=dict)


class Ledger:
    """Records each storage on a type of device from its first tensor to its end."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.live = 0
        self.window = 0
        self.line_of_node: dict[int, str] = {}
        self._blocks: dict[int, Block] = {}
        # Changes in bytes in their order, with the beginning of each phase between them.
        self._events: list[tuple[Block, int] | str] = []
        self._most: Counter[str] = Counter()
        self._lines: dict[str, str] = {}
        self._phase = ""
        self._record_resizes()

    @property
    def most(self) -> int:
        """Return the most bytes that were live at a moment of the process."""
        return max(self._most.values(), default=0)

    # -- recording --------------------------------------------------------------------------------

    def enter(self, phase: str) -> None:
        """Begin a phase. "" is no phase, and its memory is not reported."""
        self._phase = phase
        self._events.append(phase)
        self._most[phase] = max(self._most[phase], self.live)

    def record(self, tensor: Tensor) -> None:
        """Record the storage of a tensor, if the storage is new."""
        if tensor.device.type != self.device:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._blocks:
            kind = EXCHANGED if is_for_exchange() else ACTIVATIONS
            self._blocks[key] = Block(kind, self.window)
            weakref.finalize(storage, self._free, key)
            self._resize(self._blocks[key], storage.nbytes())

    def _record_resizes(self) -> None:
        """Record new sizes of storages. FSDP2 frees gathered parameters by the size 0."""
        resize = torch.UntypedStorage.resize_

        def resize_and_record(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            block = self._blocks.get(storage._cdata)
            if block is not None:
                self._resize(block, storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resize_and_record  # type: ignore[assignment, method-assign]

    def _free(self, key: int) -> None:
        self._resize(self._blocks.pop(key), 0)

    def _resize(self, block: Block, new: int) -> None:
        change = new - block.bytes
        block.bytes = new
        self.live += change
        self._events.append((block, change))
        if self.live > self._most[self._phase]:
            self._most[self._phase] = self.live
            self._lines[self._phase] = self._line()

    def note_node(self) -> None:
        """Remember the line of the operation that runs, for its backward pass."""
        if torch.is_grad_enabled():
            # The node of the operation exists already.
            next_number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
            self.line_of_node[next_number - 1] = line()

    def _line(self) -> str:
        """Return the line that runs, and in a backward pass the line of the forward pass."""
        node = torch._C._current_autograd_node()
        if node is None:
            return line()
        return line() or self.line_of_node.get(node._sequence_nr(), "")

    # -- kinds ------------------------------------------------------------------------------------

    def claim(self, kind: str, tensors: Iterable[Any]) -> None:
        """Say the kind of storages. A kind that was said before stays, but for ``EXCHANGED``."""
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                continue
            block = self._blocks.get(local(tensor).untyped_storage()._cdata)
            if block is not None and block.kind in _GUESSES:
                block.kind = kind
                block.window = -1

    def claim_new(self, kind: str) -> None:
        """Say the kind of all memory that this optimizer step has asked for and not freed."""
        for block in self._blocks.values():
            if block.bytes and block.window == self.window:
                block.kind = kind

    # -- report -----------------------------------------------------------------------------------

    def phases(self) -> dict[str, Phase]:
        """Return the memory by phase, in the order in which the phases began."""
        now = dict.fromkeys(KINDS, 0)
        phases: dict[str, Phase] = {}
        phase = Phase()
        for event in [*self._events, ""]:
            if isinstance(event, str):
                phase.at_end = dict(now)
                phase = phases.setdefault(event, Phase(self._lines.get(event, "")))
            else:
                block, change = event
                now[block.kind] += change
            total = sum(now.values())
            if total > phase.most:
                phase.most, phase.at_most = total, dict(now)
        phases.pop("", None)
        return phases
