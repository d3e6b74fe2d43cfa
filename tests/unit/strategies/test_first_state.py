"""State that optimizers have before their first step, given to the tensors that they will step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad

from trainer.strategies.first_state import first_state, replaced_problem


def model(device: str = "cpu") -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)).to(device)


def test_other_tensors_get_what_parameters_had() -> None:
    parameters = [
        *model().parameters(),
        nn.Parameter(torch.tensor(1.0)),
        nn.Parameter(torch.ones(2).double()),
    ]
    first = first_state(Adagrad(parameters, initial_accumulator_value=0.25))
    assert first is not None and len(first) == 0
    flat = torch.zeros(7)
    assert first[flat]["sum"].tolist() == [0.25] * 7 and first[flat]["step"].shape == ()
    first[flat]["step"] += 1
    assert first[torch.zeros(2)]["step"] == 0.0, "each tensor has its own"
    assert first[torch.zeros(2).double()]["sum"].dtype == torch.float64
    assert first[flat]["step"] == 1.0 and len(first) == 3


def test_an_optimizer_without_state_has_none() -> None:
    optimizer = SGD(model().parameters(), lr=0.1)
    assert first_state(optimizer) is None and replaced_problem(optimizer) == ""


class SlowWeights(SGD):
    """Keeps a copy of each parameter from the start."""

    def __init__(self, params: Iterable[Any], lr: float) -> None:
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["slow"] = parameter.detach().clone()


class Numbered(SlowWeights):
    """Keeps the number of each parameter."""

    def __init__(self, params: Iterable[Any], lr: float) -> None:
        super().__init__(params, lr)
        for number, state in enumerate(self.state.values()):
            del state["slow"]
            state["number"] = number


@pytest.mark.parametrize(
    ("made", "device", "problem"),
    [
        (SlowWeights, "cpu", "'slow', whose elements are not all the same"),
        (Numbered, "cpu", "'number', which is not the same for all parameters"),
        (
            Adagrad,
            "meta",
            "'sum', whose values are not there, since the model was built on the meta device",
        ),
    ],
)
def test_what_cannot_be_given_to_others_is_told(made: Any, device: str, problem: str) -> None:
    optimizer = made(model(device).parameters(), lr=0.1)
    assert first_state(optimizer) is None
    assert replaced_problem(optimizer) == f"before its first step the optimizer keeps {problem}"
