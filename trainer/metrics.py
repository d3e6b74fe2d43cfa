"""Metrics as sums and weights: accumulated on the device, exchanged only when read.

A mean of per-rank means is wrong as soon as ranks hold different counts; sums are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from accelerate import Accelerator


class WeightedSums:
    """Sum of values and sum of weights for each name, in float64 where the device has it."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, metrics: Mapping[str, Tensor | tuple[Tensor, Tensor]], *, counts: bool = True) -> None:
        """Add one batch: per-example values, or ``(sum, weight)``. Without ``counts`` only the names are noted."""
        for name, value in metrics.items():
            if isinstance(value, tuple):
                pair = torch.stack([_wide(value[0]).sum(), _wide(torch.as_tensor(value[1], device=value[0].device))])
            else:
                wide = _wide(value)
                pair = torch.stack([wide.sum(), wide.new_tensor(float(wide.numel()))])
            if not counts:
                pair = torch.zeros_like(pair)
            self._sums[name] = self._sums[name] + pair if name in self._sums else pair

    def reduce(self, accelerator: Accelerator) -> dict[str, float]:
        """Means over all ranks, from one packed reduction. Every rank calls it; a name of weight 0 gives nan."""
        if not self._sums:
            return {}
        names = sorted(self._sums)
        packed = accelerator.reduce(torch.stack([self._sums[name] for name in names]), "sum")
        return {name: total / weight if weight else float("nan") for name, (total, weight) in _rows(names, packed)}


def _rows(names: list[str], packed: Tensor) -> list[tuple[str, tuple[float, float]]]:
    return [(name, (row[0], row[1])) for name, row in zip(names, packed.tolist(), strict=True)]


def _wide(value: Tensor) -> Tensor:
    value = value.detach()
    return value.float() if value.device.type == "mps" else value.double()
