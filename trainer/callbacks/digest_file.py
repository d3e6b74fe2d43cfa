"""digests.jsonl: the bits of each step of a run with ``same_bits``, for ``trainer replay``.

The file begins with a row of the tensors' names and of facts that change bits, and so does the part
of each resume. Each further row has the digests of a step.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ..checkpoint.compatibility import differences
from ..checkpoint.disk import hash_file
from ..hooks import Callback, StepInfo
from ..run import Built, Run
from ..strategies.digests import StepDigests
from ..strategies.exact import Exact
from ..text import size

if TYPE_CHECKING:
    from torch import nn

    from ..data.batches import Window

FILE = "digests.jsonl"


class Digests(Callback):
    """Writes the digests of each step, and tells a resume under other facts."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.before: Mapping[str, Any] | None = None  # of the checkpoint
        self._digests: StepDigests | None = None
        self._micro_batches = 0

    def on_model(self, run: Built, model: nn.Module) -> None:
        elements = sum(p.numel() for p in model.parameters() if p.requires_grad)
        run.note(f"same_bits: whole gradients add up in float64, {size(8 * elements)} per rank")

    def on_start(self, run: Run) -> None:
        assert isinstance(run.strategy, Exact)
        self._digests = StepDigests(run.strategy)
        own = facts_of(run)
        others = [differences(own, of_rank) for of_rank in run.agreement.gather(own)]
        self.facts = own
        for line in dict.fromkeys(line for lines in others for line in lines):
            run.say(f"same_bits: ranks differ, and bits may follow: {line}")
        for line in differences(self.before or own, own):
            run.say(f"same_bits: changed since the checkpoint, and bits may follow: {line}")
        head = {"tensors": self._digests.names, "begins": run.step, "facts": self.facts}
        if run.is_main:
            run.directory.row(head, FILE)

    def on_window(self, run: Run, window: Window) -> None:
        self._micro_batches = -(-window.samples // run.plan.micro_batch_size)

    def on_step(self, run: Run, info: StepInfo) -> None:
        assert self._digests is not None
        found = self._digests.read(self._micro_batches)
        if run.is_main:
            of_step = {"step": info.step, "world": run.plan.world_size, **found}
            run.directory.row(of_step, FILE)

    def state_dict(self) -> Mapping[str, Any]:
        return {"facts": self.facts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.before = state["facts"]


def facts_of(run: Run) -> dict[str, Any]:
    """Return facts of this process that change bits: versions, threads, processors, kernels."""
    found = {
        **run.facts["versions"],
        "task file": _checksum(sys.modules[type(run.task).__module__]),
        "threads": torch.get_num_threads(),
        "cpu": run.facts["machine"]["cpu"],
        "cpu kernels": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.enabled,
    }
    if run.plan.device == "cuda":
        found["gpu"] = torch.cuda.get_device_name(run.accelerator.device)
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return found


def _checksum(module: ModuleType) -> str:
    """Return the checksum of a module's file. "" if the module has no file."""
    file = getattr(module, "__file__", None)
    return hash_file(Path(file)) if file else ""
