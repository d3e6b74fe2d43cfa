"""same_bits: which settings and parts are refused, and sums and norms without an order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plans import FOUR_GPUS, plan, request
from torch import Tensor, nn

from trainer import ConfigError, DataError, LaunchError, TrainConfig
from trainer.private.torch import reads_found_inf
from trainer.strategies import Strategy, strategy_class
from trainer.strategies.borders import add_borders
from trainer.strategies.same_bits import (
    exact_norm,
    refuse_changed_buffers,
    refuse_parts,
    rounded_additions,
)


def strategy(name: str = "ddp", asked: dict[str, Any] | None = None, **settings: Any) -> Strategy:
    accelerator: Any = SimpleNamespace(process_index=0, num_processes=1, device="cpu")
    found = plan(
        request(name, **(asked or {})),
        world=1 if name == "single" else 2,
        **{"same_bits": True, "global_batch_size": 16, **settings},
    )
    config = TrainConfig(task="m:T", max_steps=1, same_bits=True, global_batch_size=16)
    return strategy_class(name, config)(found, accelerator)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mixed_precision", "fp16"),
        ("find_unused_parameters", True),
        ("reduce_dtype", "bf16"),
        ("sync_each_batch", True),
        ("context_parallel", 2),
        ("compile", True),
    ],
)
def test_a_setting_that_the_mode_cannot_hold_with_is_refused(key: str, value: Any) -> None:
    strategy()
    with pytest.raises(ConfigError, match=rf"{key}: .*not beside same_bits: true") as refused:
        strategy(**{key: value})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("cpu_offload", "strategy.offload"),
        ("activation_checkpointing", "fsdp.activation_checkpointing"),
    ],
)
def test_parts_of_fsdp2_that_no_test_has_shown_are_refused(key: str, name: str) -> None:
    strategy("fsdp", {"fsdp": {}})
    with pytest.raises(ConfigError, match=f"{name}: .*not beside same_bits: true"):
        strategy("fsdp", {"fsdp": {key: True}}, machine=FOUR_GPUS)


def test_offloading_under_zero_is_refused() -> None:
    zero = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    with pytest.raises(ConfigError, match=r"strategy.offload: .*not beside same_bits: true"):
        strategy("zero2", {"deepspeed": zero})


def test_a_process_on_a_cpu_computes_with_a_thread() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        strategy()
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_both_batches_are_needed() -> None:
    with pytest.raises(
        ConfigError, match="same_bits: true: needs micro_batch_size and global_batch"
    ):
        strategy(global_batch_size=None)


def test_parts_that_the_mode_cannot_hold_with_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    refuse_parts(model)
    model[1].double()
    with pytest.raises(LaunchError, match=r"1\.weight, 1\.bias must be float32"):
        refuse_parts(model)


def test_fused_kernels_are_switched_off() -> None:
    made: Any = strategy("single")
    model = nn.Linear(2, 2)
    optimizer: Any = torch.optim.AdamW(model.parameters(), fused=True)
    made.accelerator.prepare = lambda *prepared: (model, SimpleNamespace(optimizer=optimizer))
    made.prepare(model, optimizer)
    assert made.optimizer.param_groups[0]["fused"] is False
    assert not reads_found_inf(optimizer), "a step is left out by the host"


def test_a_buffer_that_forward_passes_change_is_refused() -> None:
    model = nn.BatchNorm1d(2, affine=False)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    refuse_changed_buffers(model, before)
    model(torch.randn(4, 2))
    with pytest.raises(DataError, match="forward passes change running_mean, running_var"):
        refuse_changed_buffers(model, before)


# -- the norm -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0, 8.0])
def test_the_norm_is_the_same_however_the_elements_are_cut(spread: float) -> None:
    """In float64 added up in another order it has several values."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(200_001, generator=generator)
    values = drawn * torch.exp(spread * torch.randn(200_001, generator=generator))
    found = set()
    for parts in (1, 2, 3, 7, 1000):
        cut = list(values[torch.randperm(len(values), generator=generator)].tensor_split(parts))
        found.add(exact_norm(cut, len(values), None).item())
    [norm] = found
    exact = float(values.double().square().sum().sqrt())
    assert norm == pytest.approx(exact, rel=2.0**-24)


def test_additions_that_float64_rounds_are_counted() -> None:
    sums = torch.tensor([1.0, 1.0, 3.0], dtype=torch.float64)
    assert rounded_additions(sums, torch.tensor([2.0**-52, 2.0**-54, 0.1])) == 1
    assert rounded_additions(sums, torch.tensor([1.0, 0.25, 0.0])) == 0


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_the_norm_of_values_that_are_not_finite_is_not(bad: float) -> None:
    values = torch.tensor([1.0, bad])
    assert not exact_norm([values], 2, None).isfinite()
    assert exact_norm([torch.zeros(3)], 3, None) == 0 == exact_norm([torch.zeros(0)], 3, None)


# -- borders --------------------------------------------------------------------------------------


class Inside(nn.Module):
    """Uses an input twice."""

    def forward(self, value: Tensor, *, scale: Tensor) -> Tensor:
        return value * scale[0] + (value * scale[1]).square()


def test_uses_within_a_module_add_up_first() -> None:
    """a + (b + c), where autograd alone has (a + b) + c."""
    values = torch.linspace(-3, 3, 1001)
    factor = torch.linspace(0.3, 5, 1001)

    def gradient(module: nn.Module) -> Tensor:
        leaf = values.clone().requires_grad_()
        inner = leaf * 1.0
        (module(inner, scale=torch.stack([factor, factor / 3])) + inner * 1e-3).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    plain, bordered = Inside(), Inside()
    add_borders(bordered)
    within = values.clone().requires_grad_()
    Inside()(within, scale=torch.stack([factor, factor / 3])).sum().backward()
    assert within.grad is not None
    assert gradient(bordered).equal(within.grad + 1e-3)
    assert not gradient(plain).equal(gradient(bordered))


def test_a_border_makes_other_objects_of_the_inputs_and_no_other_flags() -> None:
    seen: list[Tensor] = []

    class Seeing(nn.Module):
        def forward(self, *values: Tensor) -> None:
            seen.extend(values)

    module = Seeing()
    add_borders(module)
    first, second = torch.ones(2, requires_grad=True), torch.ones(2)
    module(first, first, second)
    assert [value.requires_grad for value in seen] == [True, True, False]
    assert seen[0] is not seen[1] and not {*map(id, seen)} & {id(first), id(second)}


def test_a_change_in_place_behind_a_border_is_an_error_and_not_silent() -> None:
    class InPlace(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return value.add_(1)

    module = InPlace()
    add_borders(module)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        module(torch.ones(2, requires_grad=True) * 2)
