"""FSDP2 with ``same_bits``: torch itself adds up micro-batches and ranks in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from .exact import Exact
from .fsdp import FSDP2
from .gathered import carry_hooks
from .tensors import DTYPES

if TYPE_CHECKING:
    from torch.optim import Optimizer


class ExactFSDP2(Exact, FSDP2):
    """Reduces sums in float64, and casts the inputs of the model alone, as ZeRO does."""

    casts_inputs = True

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().prepare(model, optimizer)
        for unit in self._sharded:  # the sum, which needs no division
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)

    def watch_gradients(self, note: Callable[[str, Tensor], object]) -> None:
        # A gathered parameter stays the same object.
        carry_hooks(self.model, {name: {0: partial(note, name)} for name, _ in self.parameters()})

    def _precision(self) -> MixedPrecisionPolicy:
        return MixedPrecisionPolicy(
            param_dtype=DTYPES.get(self.plan.mixed_precision),
            reduce_dtype=torch.float64,
            cast_forward_inputs=False,
        )
