"""A callback for ``trainer parity``, which keeps the first and the last weights of a training.

The first weights may be nudged in the last places (``curves.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file

from ..hooks import Callback, StepInfo
from ..run import Run

if TYPE_CHECKING:
    from torch import Tensor

FIRST, LAST = "first.safetensors", "last.safetensors"
# How far each weight is nudged on average, relative to the weight: some 16 units in the last place.
# A network that chooses (ReLU, max pooling) takes another way by chance, the sooner the larger the
# nudge. How far the network then goes does not depend on the nudge. Three runs of the digits CNN
# from weights nudged by 16 units left the reference by the third step, and were 3e-3 to 2e-2 away
# within 30. Six runs from weights nudged by a single unit stayed for 20 steps, while two processes
# left at the fourth (2026-11-23). Without such choices nudged runs stay near the strict bounds: the
# loss of a smooth CNN was 2e-6 to 1e-5 away over 30 steps (four runs, 2026-11-27), and 4e-6 to 8e-6
# after nudges of 16 units each (three runs).
NUDGE = 1.5e-6


class Weights(Callback):
    """Writes the trainable weights of a run, in float32, to ``first`` and ``last.safetensors``.

    ``seed`` decides the nudges of the first weights. 0 nudges none.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def on_start(self, run: Run) -> None:
        if self.seed:
            first = _weights(run)
            generator = torch.Generator().manual_seed(self.seed)
            for value in first.values():
                value *= 1 + NUDGE * torch.randn(value.shape, generator=generator)
            run.strategy.fill(first.items())
        _write(run, FIRST)

    def on_step(self, run: Run, info: StepInfo) -> None:
        if info.is_last:
            _write(run, LAST)


def _weights(run: Run) -> dict[str, Tensor]:
    """Return copies of the trainable parameters by name, whole, on the CPU. Collective."""
    strategy = run.strategy
    return {
        name: strategy.full_tensor(parameter).to("cpu", torch.float32, copy=True)
        for name, parameter in strategy.parameters()
    }


def _write(run: Run, file: str) -> None:
    weights = _weights(run)
    if run.is_main:
        save_file(weights, run.directory.path / file)
