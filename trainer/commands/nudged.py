"""Write the first weights of a run, nudged in the last places, for ``trainer parity``.

A training from these weights shows how far rounding alone leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.load import Loaded
from ..script import load_task
from .runs import Run

if TYPE_CHECKING:
    from torch import Tensor

# The name of a folder of nudged weights, before the seed. Runs from such weights are known by the
# name.
NUDGED = "nudged-weights-"

# The units in the last place by which each weight is nudged. A network that chooses (ReLU, max
# pooling) takes another way by chance, the sooner the larger the nudge. How far the network then
# goes does not depend on the nudge. Three runs of the digits CNN from weights nudged by 16 units
# left the reference by the third step, and were 3e-3 to 2e-2 away within 30. Six runs from weights
# nudged by a single unit stayed for 20 steps, while two processes left at the fourth (2026-11-23).
# Without such choices 16 units are 1e-6, and stay below the strict bounds.
UNITS = 16


def is_nudged(run: Run) -> bool:
    """Return whether a run began with nudged weights."""
    return f"/{NUDGED}" in str(run.plan.get("weights"))


def first_weights(loaded: Loaded) -> tuple[str, dict[str, Tensor]]:
    """Build the model as every run of a config does, on the CPU.

    Returns:
        The name of a model file, and parameters and persistent buffers by name in the file.
    """
    from ..checkpoint.export import ModelFile
    from ..strategies.tensors import canonical_state
    from .whole_model import build_whole

    task, _ = load_task(loaded)
    task.build_data()  # a model may be built from something that the data prepares
    model = build_whole(task, loaded.config.seed)
    form = ModelFile.of(task.saved_part(model))
    tensors = {form.name(name): tensor for name, tensor in canonical_state(model)}
    return form.file, {name: tensor for name, tensor in tensors.items() if name is not None}


def write_nudged(tensors: Mapping[str, Tensor], file: Path, seed: int) -> None:
    """Write a model file in which each trainable weight is ``UNITS`` units up or down.

    Args:
        tensors: as ``first_weights`` returns them.
        file: the new file, in a new folder.
        seed: decides which weights go up.
    """
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    written: dict[str, Tensor] = {}
    # A shared tensor is written once, under its first name.
    names = {id(tensor): name for name, tensor in reversed(list(tensors.items()))}
    for name in names.values():
        value = tensors[name].detach()
        if tensors[name].requires_grad:
            value = value.float()
            sign = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
            neighbour = torch.nextafter(value, sign * torch.tensor(torch.inf))
            value = value + UNITS * (neighbour - value)
        written[name] = value.contiguous()

    file.parent.mkdir(parents=True)
    save_file(written, file)
