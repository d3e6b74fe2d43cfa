"""digests.jsonl: the bits of each step of a run with ``same_bits``, for ``trainer replay``.

The file begins with a row of the tensors' names and of facts that change bits, and so does the part
of each resume. Each further row has the digests of a step.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..checkpoint.compatibility import differences
from ..checkpoint.disk import hash_file
from ..hooks import Callback, StepInfo
from ..run import Run
from ..strategies.digests import digest, parts_of_digests, summed
from ..strategies.exact import Exact
from ..strategies.tensors import DTYPES

if TYPE_CHECKING:
    from ..data.batches import Window

FILE = "digests.jsonl"


class Digests(Callback):
    """Writes the digests of each step, and tells a resume under other facts.

    Without the mode the digests of micro-batches and gradients are zeros.
    """

    before: Mapping[str, Any] | None = None  # of the checkpoint

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    def on_start(self, run: Run) -> None:
        # In a micro-batch's digest each parameter counts an odd number of times.
        names = [name for name, _ in run.strategy.parameters()]
        self._odd = {name: 2 * number + 1 for number, name in enumerate(names)}
        self._gradients = torch.zeros(len(names), dtype=torch.int64, device=run.accelerator.device)
        if isinstance(run.strategy, Exact):
            self._watch(run.strategy)
        self.facts = facts_of(run)
        others = [differences(self.facts, of_rank) for of_rank in run.agreement.gather(self.facts)]
        for line in dict.fromkeys(line for lines in others for line in lines):
            run.say(f"same_bits: ranks differ, and bits may follow: {line}")
        for line in differences(self.before or self.facts, self.facts):
            run.say(f"same_bits: changed since the checkpoint, and bits may follow: {line}")
        run.directory.row({"tensors": names, "begins": run.step, "facts": self.facts}, FILE)

    def _watch(self, strategy: Exact) -> None:
        """Read the digests of gradients from now on. Collective: call on every rank."""
        if strategy.plan.mixed_precision != "no":
            # The model computes with them in 16 bits, and ZeRO keeps no others.
            for shard in strategy.shards(trainable=False):
                shard.tensor.copy_(shard.tensor.to(DTYPES[strategy.plan.mixed_precision]))
        world, rank = strategy.plan.world_size, strategy.accelerator.process_index

        def note(name: str, gradient: Tensor) -> None:
            place = (strategy.micro_batches - 1) * world + rank
            self._micros[place] += digest(gradient) * self._odd[name]

        def note_step(gradients: list[Tensor]) -> None:
            self._gradients = parts_of_digests(strategy, gradients)

        strategy.watch_gradients(note)
        strategy.note_step = note_step

    def on_window(self, run: Run, window: Window) -> None:
        self._micro_batches = -(-window.samples // run.plan.micro_batch_size)
        # Those of all ranks, of which this rank fills in its own.
        places = len(window.micros) * run.plan.world_size
        self._micros = self._gradients.new_zeros(places)

    def on_step(self, run: Run, info: StepInfo) -> None:
        tensors, world = len(self._odd), run.plan.world_size
        found = [self._micros, self._gradients, parts_of_digests(run.strategy)]
        texts = summed(torch.cat(found), world)
        digests = {
            "micro_batches": texts[: self._micro_batches],
            "gradients": texts[-2 * tensors : -tensors],
            "weights": texts[-tensors:],
        }
        run.directory.row({"step": info.step, "world": world, **digests}, FILE)

    def state_dict(self) -> Mapping[str, Any]:
        return {"facts": self.facts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.before = state["facts"]


def facts_of(run: Run) -> dict[str, Any]:
    """Return facts of this process that change bits: versions, threads, processors, kernels."""
    file = getattr(sys.modules[type(run.task).__module__], "__file__", None)
    found = {
        **run.facts["versions"],
        "task file": hash_file(Path(file)) if file else "",
        "threads": torch.get_num_threads(),
        "cpu": run.facts["machine"]["cpu"],
        "cpu kernels": torch.backends.cpu.get_cpu_capability(),
    }
    if run.plan.device == "cuda":
        found["gpu"] = torch.cuda.get_device_name(run.accelerator.device)
        found["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return found
