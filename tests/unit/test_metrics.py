"""Values of an evaluation that are summed with their weights, and those that are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.errors import ConfigError, DataError
from trainer.metrics import WeightedSums


class Ranks:
    """Stands in for Accelerator.reduce: adds up what each rank packed."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.packed: list[Tensor] = []

    def reduce(self, tensor: Tensor, how: str) -> Tensor:
        assert how == "sum"
        self.packed.append(tensor)
        return torch.stack(self.packed).sum(0)


def test_a_batch_without_weight_adds_nothing() -> None:
    sums = WeightedSums()
    sums.add({"loss": (torch.tensor(math.nan), torch.tensor(0))})
    sums.add({"loss": (torch.tensor(6.0), 3)})
    assert sums.reduce(Ranks(), sums.layout()) == {"loss": 2.0}


@pytest.mark.parametrize("value", [torch.tensor(1.0), 0.5])
def test_one_number_for_a_batch_is_refused(value: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"^evaluation_step: accuracy: a single number for a whole batch has no known weig",
    ):
        WeightedSums().add({"accuracy": value})


@pytest.mark.parametrize(
    ("result", "said"), [(None, "a NoneType"), (torch.ones(4), "a Tensor"), ([1.0], "a list")]
)
def test_an_evaluation_returns_values_by_name(result: Any, said: str) -> None:
    with pytest.raises(
        DataError, match=f"^evaluation_step must return values by name, .* It returned {said}$"
    ):
        WeightedSums().add(result)
