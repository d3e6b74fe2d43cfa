"""Replicas, or a single process, with ``same_bits``: sums in float64, exchanged once a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from .base import StepResult
from .cast_weights import CastWeights
from .ddp import DDP
from .exact import Exact
from .tensors import DTYPES, unwrapped

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..run_plan import Plan


class ExactDDP(Exact, DDP):
    """Adds up the gradients of all micro-batches itself, and casts weights in 16 bits."""

    casts_inputs = True
    _cast: CastWeights | None = None

    @classmethod
    def accelerator_arguments(cls, plan: Plan) -> dict[str, Any]:
        from accelerate import AutocastKwargs

        arguments = super().accelerator_arguments(plan)
        arguments["kwargs_handlers"] += [AutocastKwargs(enabled=False)]
        return arguments

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().prepare(model, optimizer)
        self.take_gradients()
        if self.plan.mixed_precision != "no":
            dtype = DTYPES[self.plan.mixed_precision]
            self._cast = CastWeights(unwrapped(self.model), dtype)

    def micro_step(self, *, boundary: bool) -> Any:
        if self._cast:
            self._cast.copies = {}
        return super().micro_step(boundary=False)  # DDP itself exchanges no gradient

    def finish_step(self, on_nan: str | None = None) -> StepResult:
        if self._cast:
            self._cast.copies = None
        for parameter, gradient in zip(self.trainable, self.reduced(), strict=True):
            parameter.grad = gradient
        return super().finish_step(on_nan)

    def missed_exchange(self) -> str:
        return ""  # each rank's sums are exchanged, whatever the task has called
