"""Steps that are left out where a device decides, and samples by their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Numbers, Plain
from one_process import fit
from torch import nn

from trainer import Data, TrainerError
from trainer.checks.finite import samples_of
from trainer.data.batches import Layout
from trainer.data.indexed import IndexedData
from trainer.data.order import epoch_order
from trainer.strategies.finite import step_by_flag, step_if_finite

fresh = pytest.mark.usefixtures("fresh_accelerate")


def stepped(**settings: Any) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    """A parameter and a fused AdamW that has stepped it once."""
    parameter = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = torch.optim.AdamW([parameter], fused=True, **settings)
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
    assert all(map(torch.equal, before, (parameter, *optimizer.state[parameter].values()))), (
        "moments and count as well"
    )
    other, plain = stepped()
    for one, stepper in (
        (parameter, lambda: step_by_flag(optimizer, torch.tensor(1.0))),
        (other, plain.step),
    ):
        one.grad = torch.tensor([0.3, 0.4])
        stepper()
    assert torch.equal(parameter, other), "the same bits as without the flag"


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_on_the_cpu_no_optimizer_steps_with_what_is_not_finite(on_nan: str) -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    parameter.grad = torch.ones(2)
    step_if_finite(optimizer, torch.tensor(float("inf")), on_nan)
    assert parameter.tolist() == [1.0, 1.0]
    step_if_finite(optimizer, torch.tensor(1.0), on_nan)
    assert parameter.tolist() == [0.0, 0.0]
    step_if_finite(optimizer, torch.tensor(float("inf")), "")
    assert parameter.tolist() == [-1.0, -1.0], "a loop that does not look gets what it asked for"


def test_samples_of_a_step_are_those_of_its_window() -> None:
    layout = Layout(rank=1, world_size=2, micro_batch_size=2, accumulation_steps=2)
    data = IndexedData(Numbers(19), layout, seed=3)
    order = epoch_order(19, 3, 0)
    assert samples_of(data, 0, 8) == [order[2:4].tolist(), order[6:8].tolist()]
    assert samples_of(data, 16, 19) == [order[17:19].tolist()], "a short last step"
    assert samples_of(data, 19, 27)[0] == epoch_order(19, 3, 1)[2:4].tolist()


class LosesAll(Plain):
    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return super().training_step(model, batch) * float("inf")

    def build_data(self) -> Data:
        return Data(train=Numbers(240))


@fresh
def test_a_run_that_skips_every_step_ends(tmp_path: Path) -> None:
    with pytest.raises(
        TrainerError, match=r"^step 32: the loss on rank 0 is inf, .*; 32 steps in a row were left"
    ):
        fit(tmp_path, LosesAll(), max_steps=50, on_nan="skip", save_every=None)
