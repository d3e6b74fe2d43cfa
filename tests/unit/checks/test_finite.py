"""Steps that are left out where a device decides, and samples by their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Numbers, Plain
from fake_run import TwoRanks, fake_run, step_info
from one_process import fit
from torch import nn

from trainer import Data, TrainerError
from trainer.checks.finite import FiniteNumbers, samples_of
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


NAN = torch.tensor(float("nan"))


def run_of_two(lost_by_the_other: list[Any], skipped_in_a_row: int = 0) -> Any:
    """Return rank 0 of two, at the third step of eight samples; ``fail`` raises."""
    cut = Layout(rank=0, world_size=2, micro_batch_size=4, accumulation_steps=1)

    def fail(text: str) -> None:
        raise TrainerError(text)

    return fake_run(
        agreement=TwoRanks(lambda mine: lost_by_the_other),
        train_data=IndexedData(Numbers(64), cut, seed=3),
        step_began=16,
        skipped_steps=0,
        skipped_in_a_row=skipped_in_a_row,
        saves_at=lambda step: False,
        fail=fail,
    )


def judge(on_nan: str, lost: list[Any], skipped_in_a_row: int = 0, **values: Any) -> Any:
    run = run_of_two(lost, skipped_in_a_row)
    info = step_info(3, **{"shares": [torch.tensor(1.0)], **values})
    FiniteNumbers(on_nan).on_step(run, info)
    return run


def test_a_lost_loss_is_named_with_rank_and_samples() -> None:
    expected = r"^step 3: the loss on rank 1 is nan, of samples 5, 7 of Data\.train$"
    with pytest.raises(TrainerError, match=expected):
        judge("stop", [(float("nan"), [5, 7])], grad_norm=NAN)


def test_the_samples_of_this_rank_are_those_of_its_micro_batch() -> None:
    own = epoch_order(64, 3, 0)[16:20].tolist()
    with pytest.raises(TrainerError) as error:
        judge("stop", [(float("inf"), [5])], shares=[NAN], grad_norm=NAN)
    text = ", ".join(map(str, own))
    assert f"rank 0 is nan, of samples {text} of Data.train, and others on rank 1" in str(
        error.value
    )


def test_a_gradient_may_be_lost_though_no_loss_is() -> None:
    with pytest.raises(TrainerError, match="the gradient is not finite, though the losses of all"):
        judge("stop", [], grad_norm=NAN)


def test_a_logged_loss_without_a_value_ends_the_run_though_its_gradient_has_one() -> None:
    lost = [(float("nan"), [5])]
    with pytest.raises(TrainerError, match=r"^step 3: the loss on rank 1 is nan"):
        judge("stop", lost, metrics={"loss": float("nan")})
    assert judge("skip", lost, metrics={"loss": float("nan")}).said == []


def test_a_step_that_is_left_out_is_counted_and_reported() -> None:
    run = judge("skip", [(float("nan"), [5])], grad_norm=NAN)
    assert run.skipped_steps == 1
    [line] = run.said
    assert line.startswith("note: step 3: the loss on rank 1 is nan")
    assert line.endswith("; the step is left out")


def test_steps_that_the_fp16_scaler_skips_are_its_own_until_it_skips_too_many() -> None:
    assert judge("stop", [], skipped_in_a_row=31, grad_norm=NAN).said == []
    with pytest.raises(TrainerError, match=r"^step 3: "):
        judge("stop", [], skipped_in_a_row=32, grad_norm=NAN)


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
