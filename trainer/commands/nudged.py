"""Write the first weights of a run, nudged in their last places, for ``trainer parity``.

A training from these weights shows how far rounding alone leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.load import Loaded
from ..script import load_task
from .runs import Run

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# The name of a folder of nudged weights, before the seed. Runs from such weights are known by the
# name.
NUDGED = "nudged-weights-"

# The units in the last place by which each weight is nudged. A network that chooses (ReLU, max
# pooling) takes another way by chance, the sooner the larger the nudge. How far the network then
# goes does not depend on the nudge. Three runs of the digits CNN from weights nudged by 16 units
# left the reference by the third step, and were 3e-3 to 2e-2 away within 30. Of six runs from
# weights nudged by one unit none left within 20 steps, while two processes did at the fourth
# (2026-11-23). Without such choices 16 units are 1e-6, and stay below the strict bounds.
UNITS = 16


def is_nudged(run: Run) -> bool:
    """Return whether a run began with nudged weights."""
    weights = str(run.plan.get("weights") or "")
    return Path(weights).name.startswith(NUDGED)


@dataclass(frozen=True, kw_only=True)
class FirstWeights:
    """The weights that every run of a config begins with, on the CPU.

    Args:
        file: the name of a model file.
        tensors: parameters and persistent buffers, by their names in a model file.
        parameters: the parameters among them.
    """

    file: str
    tensors: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]

    @classmethod
    def of(cls, loaded: Loaded) -> FirstWeights:
        """Build the model as every run of the config does."""
        from torch import nn

        from ..checkpoint.export import ModelFile
        from ..strategies.tensors import canonical_state
        from .whole_model import build_whole

        task, _ = load_task(loaded)
        task.build_data()  # a model may be built from something that the data prepares
        model = build_whole(task, loaded.config.seed)
        form = ModelFile.of(task.saved_part(model))

        tensors: dict[str, Tensor] = {}
        parameters: dict[str, Tensor] = {}
        for name, tensor in canonical_state(model):
            name_in_file = form.name(name)
            if name_in_file is None:
                continue
            tensors[name_in_file] = tensor
            if isinstance(tensor, nn.Parameter):
                parameters[name_in_file] = tensor.detach()

        return cls(file=form.file, tensors=tensors, parameters=parameters)

    def write_nudged(self, folder: Path, seed: int) -> None:
        """Write a model folder in which each trainable weight is ``UNITS`` units up or down.

        Args:
            folder: the new folder.
            seed: decides which weights go up.
        """
        import torch
        from safetensors.torch import save_file

        generator = torch.Generator().manual_seed(seed)
        written: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, tensor in self.tensors.items():
            if id(tensor) in seen:  # a shared tensor, under another of its names
                continue
            seen.add(id(tensor))

            value = tensor.detach()
            if tensor.requires_grad and tensor.is_floating_point():
                value = _nudge(value.float(), generator)
            written[name] = value.contiguous()

        folder.mkdir(parents=True)
        save_file(written, folder / self.file)


def _nudge(value: Tensor, generator: torch.Generator) -> Tensor:
    """Move each element of a float32 tensor by ``UNITS`` units, up or down by chance."""
    import torch

    sign = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
    neighbour = torch.nextafter(value, sign * torch.tensor(torch.inf))
    return value + UNITS * (neighbour - value)
