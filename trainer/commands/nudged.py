"""Write the first weights of a run, nudged in the last places, for ``trainer parity``.

A training from these weights shows how far rounding alone leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.load import Loaded
from ..script import load_task

if TYPE_CHECKING:
    from torch import Tensor

# How far each weight is nudged on average, relative to the weight: some 16 units in the last place.
# A network that chooses (ReLU, max pooling) takes another way by chance, the sooner the larger the
# nudge. How far the network then goes does not depend on the nudge. Three runs of the digits CNN
# from weights nudged by 16 units left the reference by the third step, and were 3e-3 to 2e-2 away
# within 30. Six runs from weights nudged by a single unit stayed for 20 steps, while two processes
# left at the fourth (2026-11-23). Without such choices nudged runs stay near the strict bounds: the
# loss of a smooth CNN was 2e-6 to 1e-5 away over 30 steps (four runs, 2026-11-27), and 4e-6 to 8e-6
# after nudges of 16 units each (three runs).
NUDGE = 1.5e-6


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
    form = ModelFile.of(task, model)
    # A shared tensor has its first name alone.
    names = {tensor: form.name(name) for name, tensor in reversed([*canonical_state(model)])}
    return form.file, {name: tensor for tensor, name in names.items() if name is not None}


def write_nudged(tensors: Mapping[str, Tensor], file: Path, seed: int) -> None:
    """Write a model file in which each trainable weight is nudged by some ``NUDGE`` of the weight.

    Args:
        tensors: as ``first_weights`` returns them.
        file: the new file, in a new folder.
        seed: decides the nudges.
    """
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    written = {}
    for name, tensor in tensors.items():
        value = tensor.detach()
        if tensor.requires_grad:
            value = value.float() * (1 + NUDGE * torch.randn(value.shape, generator=generator))
        written[name] = value.contiguous()

    file.parent.mkdir(parents=True)
    save_file(written, file)
