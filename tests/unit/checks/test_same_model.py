"""What ranks compare of models and optimizers before anything is divided."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_run import TwoRanks
from torch import nn

from trainer.checks.same_model import (
    _form,
    _groups,
    _is_whole,
    _sketch,
    check_model,
)
from trainer.errors import LaunchError


def test_a_model_is_told_by_order_shape_dtype_and_what_learns() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    model[0].bias.requires_grad_(False)
    facts = _form(model)
    assert facts["parameter 0"] == "0.weight (1, 2) torch.float32 trainable"
    assert facts["parameter 1"] == "0.bias (1,) torch.float32 frozen"
    assert facts["buffer 2"] == "1.num_batches_tracked () torch.int64"
    groups = _groups(model, torch.optim.SGD([{"params": [model[0].weight], "lr": 0.5}], lr=0.1))
    assert (
        groups["optimizer group 0: lr"] == "0.5"
        and groups["optimizer group 0: parameters"] == "0.weight"
    )


def is_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    model, of_rank_1 = nn.Module(), nn.Module()
    model.register_buffer("kept", one)
    of_rank_1.register_buffer("kept", other)

    def other_rank(value: Any) -> Any:
        if isinstance(value, int):
            return value + 1
        sketched = {name: _sketch(own) for name, own in of_rank_1.named_buffers()}
        checked = {"kept": "another checksum"}
        return {tuple: sketched, str: checked}.get(type(value.get("kept")), value)

    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    try:
        check_model(model, optimizer, TwoRanks(other_rank), values_come_later=False)  # type: ignore[arg-type]
    except LaunchError:
        return False
    return True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_first_values_that_were_rounded_otherwise_are_close(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = torch.randn(1000, 64).to(dtype)
    rounded = (values * (1 + 1e-6)).to(dtype)
    drawn_again = values.clone()
    drawn_again[-1] = torch.randn(64).to(dtype)  # one row of a thousand
    assert is_close(values, rounded)
    assert not is_close(values, drawn_again)
    assert not is_close(values, values.roll(1, 0)), "the same values in another order"


def test_whole_numbers_are_the_same_or_not() -> None:
    one = torch.arange(1000)
    other = one.clone()
    other[500] += 1
    assert is_close(one, one) and not is_close(one, other)


def test_values_that_are_not_there_are_not_compared() -> None:
    with torch.device("meta"):
        assert not _is_whole(nn.Linear(2, 2).weight)
    part = nn.Parameter(torch.empty(0))
    part.ds_id = 1  # type: ignore[attr-defined]
    assert not _is_whole(part) and _is_whole(torch.ones(2))


def test_values_that_are_read_later_do_not_count() -> None:
    """A resumed run, or one with ``weights``, has them from files; what no file holds counts all
    the same.
    """
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    model.register_buffer("kept", torch.randn(2), persistent=True)
    model.register_buffer("drawn", torch.randn(2), persistent=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def other_rank(value: Any) -> Any:
        if isinstance(value, int):
            return 0
        if "drawn" in value and isinstance(value["drawn"], str):
            return {name: text + "!" for name, text in value.items()}
        return {n: (1e9, 1.0) if isinstance(v, tuple) else v for n, v in value.items()}

    with pytest.raises(
        LaunchError,
        match=r"^rank 1: the first weights of weight differ from those on rank 0: build",
    ):
        check_model(model, optimizer, TwoRanks(other_rank), values_come_later=False)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match=r"^rank 1: the first weights of drawn differ"):
        check_model(model, optimizer, TwoRanks(other_rank), values_come_later=True)  # type: ignore[arg-type]
