"""ZeRO with ``same_bits``: sums in float64 go around the engine, which steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from ..errors import LaunchError
from ..private.deepspeed_gradients import new_gradients, take_gradients
from .base import StepResult
from .deepspeed import ZeRO
from .exact import IN_PLACE, Exact
from .tensors import clip

if TYPE_CHECKING:
    from ..run_plan import Plan


class ExactZeRO(Exact, ZeRO):
    """Takes each gradient before the engine exchanges it, and clips."""

    known_errors: ClassVar = {**ZeRO.known_errors, **IN_PLACE}

    @classmethod
    def accelerator_arguments(cls, plan: Plan) -> dict[str, Any]:
        # The engine clips by another norm. Its own linear layer of stage 3 rounds otherwise.
        zero = {**plan.deepspeed["zero_optimization"], "memory_efficient_linear": False}
        settings = {**plan.deepspeed, "zero_optimization": zero}
        return super().accelerator_arguments(replace(plan, max_grad_norm=None, deepspeed=settings))

    def verify(self) -> None:
        asked = self._stage, 0.0
        runs = self.engine.zero_optimization_stage(), self.engine.gradient_clipping()
        if runs != asked:
            raise LaunchError(f"asked for stage and no clipping {asked}, but {runs} run")

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        self.bits.take_all(self.trainable)  # those that no hook of the engine has seen

    def finish_step(self, on_nan: str | None = None) -> StepResult:
        named = list(self.parameters())
        gradients = self.bits.reduced([parameter for _, parameter in named])
        norm = self.bits.end(gradients, None)
        if self.plan.max_grad_norm is not None:
            clip(gradients, self.plan.max_grad_norm, norm)

        whole = {name: gradient for (name, _), gradient in zip(named, gradients, strict=True)}
        flat = new_gradients(self.zero, self._stage)
        for shard in self.shards():
            assert shard.state_key is not None
            part = flat[shard.state_key][shard.state_offset :][: shard.tensor.numel()]
            part.copy_(shard.cut(whole[shard.name]))
        if norm.isfinite():
            self.engine.step()
        return StepResult(grad_norm=norm)

    def _take_over_reduction(self) -> None:
        take_gradients(self.zero, self._stage, self.bits.take)
