"""Moves each matrix along its momentum, so that its longest row moves by the rate."""

from typing import Any

from torch import Tensor

from trainer.optim.whole import WholeOptimizer


class RowScaled(WholeOptimizer):
    kept = ("momentum",)

    def __init__(
        self, params: Any, lr: float, weight_decay: float = 0.0, beta: float = 0.9
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "beta": beta})

    def direct(self, group: dict[str, Any], gradient: Tensor, *kept: Tensor) -> None:
        (momentum,) = kept
        momentum.mul_(group["beta"]).add_(gradient)
        gradient.copy_(momentum)

    def update(self, group: dict[str, Any], matrix: Tensor) -> Tensor:
        return matrix / matrix.norm(dim=1).max().clamp(min=1e-6)
