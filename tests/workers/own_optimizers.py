"""Optimizers as other packages bring them: one that looks at single elements, one that looks at
whole parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lion(Optimizer):
    """Chen et al. 2023: the sign of a moving average."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
    ) -> None:
        assert isinstance(betas, tuple)
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                first, second = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(average.lerp(p.grad, 1 - first).sign_(), alpha=-group["lr"])
                average.lerp_(p.grad, 1 - second)


class Lamb(Optimizer):
    """You et al. 2019, without its averages: each parameter moves by its own norm. It has no lr of
    its own.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, weight_decay: float, *, trust: float
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    update: Tensor = p.grad + group["weight_decay"] * p
                    p.sub_(
                        update
                        * (group["lr"] * group["trust"] * p.norm() / update.norm().clamp(min=1e-6))
                    )


class Clipping(torch.optim.AdamW):
    """As AdaGC and others: each parameter's gradient is held below a norm that small ones never
    reach.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and (norm := float(p.grad.norm())) > 20.0:
                    p.grad.mul_(20.0 / norm)
        return super().step(closure)


class Estimating(torch.optim.SGD):
    """As Prodigy in its first steps: an estimate over all parameters hardly moves a weight yet."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            estimate = sum(float(p.grad.square().sum()) for p in group["params"])
            group["d"] = group.get("d", 1e-12) + 1e-12 * estimate
            for p in group["params"]:
                p.grad.mul_(group["d"])
        return super().step(closure)


class LateTrust(torch.optim.SGD):
    """As LARS with a warm-up: each parameter moves by its own norm, from its fifth step on."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["steps"] = self.state[p].get("steps", 0) + 1
                if p.grad is not None and self.state[p]["steps"] > 4:
                    p.grad.mul_(p.norm() / (p.grad.norm() + 1e-6))
        return super().step(closure)


class OfLarge(torch.optim.SGD):
    """As 8-bit and factored optimizers: another rule for large parameters, of some dimensions."""

    def __init__(
        self, params: Iterable[Any], lr: float, *, above: int, dimensions: int, **more: Any
    ) -> None:
        super().__init__(params, lr, **more)
        self.above, self.dimensions = above, dimensions

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.numel() > self.above and p.dim() == self.dimensions:
                    p.grad.mul_(p.norm() / (p.grad.norm() + 1e-6))
        return super().step(closure)


class Codes(torch.optim.SGD):
    """As bitsandbytes: large parameters have state in 8 bits, with a scale for each block."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for p in self.param_groups[0]["params"]:
            if p.numel() >= 4096:
                self.state[p]["codes"] = torch.zeros_like(p, dtype=torch.uint8)
                self.state[p]["scales"] = torch.ones(p.numel() // 2048)
        return super().step(closure)


class Calls:
    """Counts its calls in an object."""

    def __init__(self) -> None:
        self.made = SimpleNamespace(calls=0)

    def __call__(self) -> None:
        self.made.calls += 1


class Counting(torch.optim.SGD):
    """Keeps a counter, or another value, in an attribute."""

    def __init__(self, params: Iterable[Any], lr: float, *, kept: Any) -> None:
        super().__init__(params, lr)
        self.kept, self.ready = kept, False

    def step(self, closure: Any = None) -> Any:
        self.ready = True
        if isinstance(self.kept, int):
            self.kept += 1
        elif isinstance(self.kept, list):
            self.kept.append(0)
        elif isinstance(self.kept, Tensor):
            self.kept.add_(1)
        elif callable(self.kept):
            self.kept()
        elif self.kept == "later":
            self.count = getattr(self, "count", 0) + 1
        return super().step(closure)
