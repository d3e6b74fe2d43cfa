"""A run's first weights, and the same nudged by some units in the last place: how far does rounding
lead?
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
    from torch import Tensor

    from ..checkpoint.export import ModelFile

NUDGED = "nudged-weights-"  # and the seed: the folder that a nudged run begins with
# In the last place of each weight. A network that chooses takes another way by chance, the sooner
# the larger the nudge; how far it then goes does not depend on it. Of the digits CNN's runs from
# weights nudged by 16 units all three left the reference by the third step, and were 3e-3 to 2e-2
# away within 30; of six nudged by one unit none within 20, while two processes did at the fourth
# step (2026-11-23). Without kinks 16 units are 1e-6, and stay below the strict bounds.
UNITS = 16


def is_nudged(run: Run) -> bool:
    """Tell whether a run began with nudged weights."""
    return Path(str(run.plan.get("weights") or "")).name.startswith(NUDGED)


@dataclass(frozen=True, kw_only=True)
class FirstWeights:
    """The weights that every run of a config begins with, on the CPU.

    Args:
        form: what of the model is written, and under which names.
        tensors: parameters and persistent buffers, by their names in a model file.
        parameters: of these, the parameters.
        dropouts: how many dropout modules the model has.
    """

    form: ModelFile
    tensors: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]
    dropouts: int

    @classmethod
    def of(cls, loaded: Loaded) -> FirstWeights:
        """Build the model as every run does."""
        from torch import nn
        from torch.nn.modules.dropout import _DropoutNd

        from ..checkpoint.export import ModelFile
        from ..strategies.tensors import canonical_state
        from .whole_model import build_whole

        task, _ = load_task(loaded)
        task.build_data()  # a model may be built after what the data prepared
        model = build_whole(task, loaded.config.seed)
        form = ModelFile.of(model)
        named = {form.name(name): tensor for name, tensor in canonical_state(model)}
        tensors = {name: tensor for name, tensor in named.items() if name is not None}
        return cls(
            form=form,
            tensors=tensors,
            parameters={
                name: one.detach() for name, one in tensors.items() if isinstance(one, nn.Parameter)
            },
            dropouts=sum(
                isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules()
            ),
        )

    def write_nudged(self, folder: Path, seed: int) -> None:
        """Write a model folder in which each trainable weight is ``UNITS`` float32 numbers up or
        down, by the seed.
        """
        import torch

        from ..checkpoint.export import write_model

        generator = torch.Generator().manual_seed(seed)
        written: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, tensor in self.tensors.items():
            if id(tensor) in seen:  # a shared one, under another of its names
                continue
            seen.add(id(tensor))
            value = tensor.detach()
            if tensor.requires_grad and tensor.is_floating_point():
                value = value.float()
                sign = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
                value = value + UNITS * (
                    torch.nextafter(value, sign * torch.tensor(torch.inf)) - value
                )
            written[name] = value.contiguous()
        entries = [(name, tuple(value.shape), value.dtype) for name, value in written.items()]
        write_model(folder, self.form.file, entries, written.values(), lambda folder: None)
