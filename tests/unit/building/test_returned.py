"""What the methods of a task return, held to what they must return: one line names the method and
what came.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer import Data, DataError, LaunchError, Task
from trainer.building.returned import data_of, model_of, optimizer_by
from trainer.losses import OneBackward, refuse_independent, split_loss
from trainer.metrics import WeightedSums


class Mine(Task):
    """Returns what it is told, as a plain class that is no dataclass can."""

    returned: Any = None

    def build_data(self) -> Any:
        return self.returned

    def build_model(self) -> Any:
        return self.returned

    def build_optimizer(self, model: nn.Module, plan: Any) -> Any:
        return self.returned


def mine(value: Any) -> Task:
    return type("Mine", (Mine,), {"returned": value})()


def test_what_is_right_is_passed_on() -> None:
    data, model = Data(train=[1]), nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    assert (data_of(mine(data)), model_of(mine(model))) == (data, model)
    assert optimizer_by(mine(optimizer), model, None) is optimizer  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "said"), [(None, "None"), (([1], [2]), "a tuple of (list, list)"), ({}, "a dict")]
)
def test_what_is_wrong_is_one_line(value: Any, said: str) -> None:
    for error, ask, line in (
        (DataError, data_of, "Mine.build_data must return trainer.Data(train=..., evaluation=...)"),
        (LaunchError, model_of, "Mine.build_model must return the model, an nn.Module"),
        (
            LaunchError,
            lambda task: optimizer_by(task, nn.Linear(1, 1), None),
            "Mine.build_optimizer must return a torch ",
        ),
    ):
        with pytest.raises(error) as caught:
            ask(mine(value))  # type: ignore[no-untyped-call]
        assert str(caught.value).startswith(line) and str(caught.value).endswith(
            f"; it returned {said}"
        )


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "None"),
        ((torch.ones((), requires_grad=True), torch.ones(4, 3)), "a tuple of (Tensor, Tensor)"),
        (torch.ones(4, requires_grad=True), "a tensor of shape (4,)"),
        ({"loss": torch.ones(())}, "a dict"),
    ],
)
def test_a_step_returns_the_loss(result: Any, said: str) -> None:
    with pytest.raises(DataError) as caught:
        split_loss(result)
    line = f"training_step must return the loss, one number, or (loss, {{name: value}}); it returned {said}"
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("result", "said"), [(None, "None"), (torch.ones(4), "a Tensor"), ([1.0], "a list")]
)
def test_an_evaluation_returns_values_by_name(result: Any, said: str) -> None:
    with pytest.raises(
        DataError, match=f"^evaluation_step must return values by name, .* it returned {said}$"
    ):
        WeightedSums().add(result)


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
        DataError, match="no parameter has a part in: compute it from what the model returned"
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


def test_a_second_backward_is_told_in_words_of_the_task() -> None:
    loss = nn.Linear(3, 1)(torch.ones(2, 3)).pow(2).mean()
    loss.backward()
    with (
        pytest.raises(DataError, match="must not call backward, which the trainer does"),
        OneBackward(),
    ):
        loss.backward()
    with pytest.raises(RuntimeError, match="mine"), OneBackward():
        raise RuntimeError("mine")
