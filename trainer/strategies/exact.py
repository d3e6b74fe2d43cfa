"""The part of ``same_bits`` that all strategies share, mixed into the class of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from .base import Strategy
from .same_bits import SameBits

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer

    from ..run_plan import Plan

# Errors of a strategy by a part of their text.
IN_PLACE = {
    "is a view and is being modified inplace": (
        "a layer changes its input in place, which same_bits forbids: write x = x + 1, not x += 1"
    )
}


class Exact(Strategy):
    """A strategy whose gradients add up exactly.

    Attributes:
        bits: the sums, norm and random numbers of the steps.
        exchanges: whether the engine exchanges gradients in the last micro-batch of a step.
    """

    exchanges = True
    sums_exactly = True

    def __init__(self, plan: Plan, accelerator: Accelerator) -> None:
        offloads = self.steps_on_cpu(plan)
        self.bits = SameBits(plan, accelerator.process_index, offloads=offloads)
        super().__init__(plan, accelerator)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.bits.check(model, optimizer)
        super().prepare(model, optimizer)
        self.bits.enter(self.model)

    def micro_step(self, *, boundary: bool) -> Any:
        self.bits.begin()
        return super().micro_step(boundary=boundary and self.exchanges)

    def has_gradients(self) -> bool:
        return self.bits.holds_gradients or super().has_gradients()

    def watch_gradients(self, note: Callable[[str, Tensor], object]) -> None:
        """Call ``note`` with the name and the whole gradient of a parameter in each micro-batch.

        A parameter without a gradient is left out. Collective: call on every rank.
        """
        names: dict[Any, str] = {parameter: name for name, parameter in self.parameters()}
        self.bits.watch = lambda parameter, gradient: note(names[parameter], gradient)

    def _norm(self, gradients: list[Tensor], each: Tensor | None) -> Tensor:
        return self.bits.end(gradients, self.shard_group)
