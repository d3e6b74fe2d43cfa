"""The loss of a training step: what may be returned, and what the backward pass may meet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer import DataError
from trainer.losses import (
    explained,
    refuse_independent,
    split_loss,
    without_backward,
)

TAKEN = (
    "training_step must return the loss, a single number, or (loss, {name: value}). For a loss of "
    "parts {name: number} Task.weight returns their counts, by the same names. It returned a "
)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "value of <class 'NoneType'>"),
        ((torch.ones((), requires_grad=True), torch.ones(4, 3)), "value of <class 'tuple'>"),
        (torch.ones(4, requires_grad=True), "value of torch.Size([4])"),
        ({"loss": torch.ones(())}, "value of <class 'dict'>"),
    ],
)
def test_a_step_returns_the_loss(result: Any, said: str) -> None:
    with pytest.raises(DataError) as caught:
        split_loss(result, {"": 1.0})
    assert str(caught.value) == f"{TAKEN}{said}, and Task.weight counts no parts"


class Doubled(torch.autograd.Function):
    """A function of somebody's own."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


def test_a_loss_without_a_parameter_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"has a part in\. Compute the loss from the model's outputs"
    ):
        refuse_independent(torch.tensor(3.0, requires_grad=True) * 2)
    with pytest.raises(DataError, match="requires_grad=True does not help"):
        refuse_independent(torch.tensor(3.0, requires_grad=True))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_loss_with_a_parameter_is_taken(reentrant: bool) -> None:
    """Also where a checkpoint hides it, and behind a function of somebody's own."""
    model, given = nn.Linear(3, 1), torch.ones(2, 3, requires_grad=True)
    refuse_independent(model(given).mean())
    refuse_independent(checkpoint(model, given, use_reentrant=reentrant).mean())
    refuse_independent(Doubled.apply(torch.ones((), requires_grad=True)))  # type: ignore[no-untyped-call]
    refuse_independent(nn.Parameter(torch.ones(())))


def test_an_error_of_the_engine_is_told_in_words_of_the_task() -> None:
    with (
        pytest.raises(DataError, match=r"^call model\(...\)$"),
        explained({"DT": "call model(...)"}),
    ):
        raise RuntimeError("aten.mm: a DTensor")
    with pytest.raises(RuntimeError, match="mine"), explained({"DT": "call model(...)"}):
        raise RuntimeError("mine")


@pytest.mark.parametrize(
    "result", [{"classes": torch.ones(())}, torch.ones(()), {"classes": 1, "boxes": 2}]
)
def test_the_parts_are_those_that_the_task_counts(result: Any) -> None:
    counted = r"and Task.weight counts \['boxes', 'classes'\]"
    with torch.no_grad(), pytest.raises(DataError, match=counted):
        split_loss(result, {"boxes": 1.0, "classes": 2.0})


def test_a_backward_pass_to_a_parameter_is_refused_and_another_is_not() -> None:
    own, weight = torch.autograd.backward, nn.Parameter(torch.ones(2))
    leaf = torch.ones(2, requires_grad=True)
    with without_backward():
        (2 * leaf).sum().backward()  # of the task's own tensors
        with pytest.raises(DataError, match="training_step must not call backward"):
            (leaf * weight).sum().backward()
        with pytest.raises(DataError, match="training_step must not call backward"):
            torch.autograd.backward([(leaf * weight).sum()])
    assert leaf.grad is not None and leaf.grad.tolist() == [2.0, 2.0] and weight.grad is None
    assert torch.autograd.backward is own
