"""The step of ZeRO's engine with sums that the engine has not made (``same_bits``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..private.deepspeed_gradients import new_gradients, take_gradients
from .base import StepResult, Strategy
from .tensors import clip

if TYPE_CHECKING:
    from .same_bits import SameBits


class ZeroSums:
    """Takes the gradients of an engine, and steps the engine with the sums.

    Args:
        strategy: whose engine it is.
        stage: of ZeRO.
    """

    def __init__(self, strategy: Strategy, bits: SameBits, engine: Any, stage: int) -> None:
        self._strategy, self._bits = strategy, bits
        self._engine, self._stage = engine, stage
        take_gradients(engine.optimizer, stage, bits.take)

    def step(self) -> StepResult:
        """Clip whole gradients, and step with this rank's parts. Collective: on every rank."""
        strategy, bits = self._strategy, self._bits
        named = list(strategy.parameters())
        gradients = [bits.reduced(parameter) for _, parameter in named]
        norm = bits.end(gradients, None)
        if strategy.plan.max_grad_norm is not None:
            clip(gradients, strategy.plan.max_grad_norm, norm)

        whole = {name: gradient for (name, _), gradient in zip(named, gradients, strict=True)}
        flat = new_gradients(self._engine.optimizer, self._stage)
        for shard in strategy.shards():
            assert shard.state_key is not None
            part = flat[shard.state_key][shard.state_offset :][: shard.tensor.numel()]
            part.copy_(shard.cut(whole[shard.name]))
        if norm.isfinite():
            self._engine.step()
        return StepResult(grad_norm=norm)
