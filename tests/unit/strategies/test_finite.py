"""The step that is left out where the gradient is not finite.

What a fused optimizer does with the flag is in ``tests/unit/checks/test_finite.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainer.strategies.finite import step_if_finite


class OnGPU(torch.Tensor):
    """A norm that says it is on a GPU, and whose value nobody may wait for."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def item(self) -> Any:
        raise AssertionError("the host waits")


class Optimizer:
    def __init__(self, *, fused: bool = False) -> None:
        self._step_supports_amp_scaling = fused
        self.steps = 0
        self.found_inf: Any = None

    def step(self) -> None:
        self.steps += 1


def norm(value: float) -> torch.Tensor:
    return torch.tensor(value).as_subclass(OnGPU)


def test_a_fused_optimizer_gets_the_flag() -> None:
    optimizer = Optimizer(fused=True)
    step_if_finite(optimizer, norm(float("nan")), "skip")
    assert optimizer.steps == 1 and torch.equal(optimizer.found_inf, norm(1.0))


@pytest.mark.parametrize("on_nan", ["", "stop"])
def test_other_optimizers_step_without_a_wait(on_nan: str) -> None:
    optimizer = Optimizer()
    step_if_finite(optimizer, norm(float("nan")), on_nan)
    assert optimizer.steps == 1


def test_skipping_a_step_waits_for_the_norm() -> None:
    with pytest.raises(AssertionError, match="the host waits"):
        step_if_finite(Optimizer(), norm(1.0), "skip")
