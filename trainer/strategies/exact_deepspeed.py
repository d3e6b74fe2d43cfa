"""ZeRO with ``same_bits``: sums in float64 go around the engine, which steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from ..private.deepspeed_engine import reset_linear
from ..private.deepspeed_gradients import exchange_nothing, new_gradients
from .base import StepResult
from .deepspeed import ZeRO
from .exact import Exact
from .tensors import clip

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class ExactZeRO(Exact, ZeRO):
    """Takes each gradient before the engine exchanges it, and clips."""

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        # The engine's own linear layer of stage 3 rounds otherwise.
        self._config["zero_optimization"]["memory_efficient_linear"] = False
        reset_linear()
        super().prepare(model, optimizer)
        self.take_gradients()

    def finish_step(self, on_nan: str | None = None) -> StepResult:
        flat = new_gradients(self.zero)
        parts = []
        for shard, whole in zip(self.shards(), self.reduced(), strict=True):
            part = flat[shard.state_key][shard.state_offset :][: shard.tensor.numel()]
            parts.append(part.copy_(shard.cut(whole)))
        norm = self.end(parts, dist.group.WORLD)
        if self.plan.max_grad_norm:
            clip(parts, self.plan.max_grad_norm, norm)
        if norm.isfinite():
            self.engine.step()
        return StepResult(grad_norm=norm)

    def _take_over_reduction(self) -> None:
        exchange_nothing(self.zero, self._stage)
