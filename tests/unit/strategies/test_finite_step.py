"""The optimizer's step with a gradient that is not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from from_launcher import configured
from torch import nn

from trainer import TrainerError, build
from trainer.strategies.finite_step import step_by_flag, step_if_finite


def stepped() -> tuple[nn.Parameter, torch.optim.Optimizer]:
    """A parameter and a fused AdamW that has stepped it once."""
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.AdamW([parameter], fused=True)
    parameter.grad = torch.tensor([0.5, -0.5])
    step_by_flag(optimizer, torch.tensor(0.7))
    return parameter, optimizer


def test_a_fused_step_looks_at_the_flag_on_its_device() -> None:
    parameter, optimizer = stepped()
    assert parameter.tolist() != [1.0, 2.0]
    before = [tensor.clone() for tensor in (parameter, *optimizer.state[parameter].values())]
    for norm in (float("nan"), float("inf")):
        parameter.grad = torch.tensor([norm, 1.0])
        step_by_flag(optimizer, torch.tensor(norm))
    after = (parameter, *optimizer.state[parameter].values())
    assert all(map(torch.equal, before, after)), "moments and count as well"

    other, plain = stepped()
    for one, stepper in (
        (parameter, lambda: step_by_flag(optimizer, torch.tensor(1.0))),
        (other, plain.step),
    ):
        one.grad = torch.tensor([0.3, 0.4])
        stepper()
    assert torch.equal(parameter, other), "the same bits as without the flag"


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_on_the_cpu_no_optimizer_steps_with_a_norm_that_is_not_finite(on_nan: str) -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.ones(2)
    step_if_finite(optimizer, torch.tensor(float("inf")), on_nan)
    assert parameter.tolist() == [1.0, 1.0]
    step_if_finite(optimizer, torch.tensor(1.0), on_nan)
    assert parameter.tolist() == [0.0, 0.0]


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


def test_on_a_gpu_the_host_waits_for_skip_without_a_fused_optimizer_only() -> None:
    norm = torch.tensor(float("nan")).as_subclass(OnGPU)
    fused, plain = Optimizer(fused=True), Optimizer()
    step_if_finite(fused, norm, "skip")
    assert fused.steps == 1 and torch.equal(fused.found_inf, torch.tensor(1.0).as_subclass(OnGPU))
    step_if_finite(plain, norm, "stop")
    assert plain.steps == 1, "the run ends before anything of it is written"
    with pytest.raises(AssertionError, match="the host waits"):
        step_if_finite(plain, norm, "skip")


def test_a_loop_of_your_own_steps_with_any_gradient_and_no_save_takes_the_result(
    tmp_path: Path,
) -> None:
    task = Plain()
    run = build(task, configured(tmp_path))
    run.strategy.backward(next(run.model.parameters()).sum() * float("nan"))
    norm = run.strategy.finish_step().grad_norm
    assert norm.isnan() and next(run.model.parameters()).isnan().all()
    with pytest.raises(TrainerError, match=r"step 0: .* holds values that are not finite"):
        run.save()
    run.close()
