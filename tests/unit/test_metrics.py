"""Metrics over several ranks equal those of one process, whatever the cut."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import Numbers, layout
from torch import Tensor

from trainer.data.evaluation import EvaluationBatches
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


def step(numbers: Tensor) -> dict[str, Any]:
    """Every kind of value; of whole numbers, so that sums are exact in any order."""
    value = (numbers * 7 % 5).double()
    classes = torch.nn.functional.one_hot(numbers % 4, 4)
    return {
        "value": value,
        "ratio": ((value * numbers).sum(), numbers.sum()),
        "per_class": (classes.T.double() @ value, classes.sum(0)),
        "table": (classes.T @ torch.nn.functional.one_hot(numbers % 3, 3), None),
    }


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 6))
def test_any_number_of_ranks_gives_the_same(size: int, world: int, batch: int) -> None:
    ranks, result = Ranks(), {}
    for rank in range(world):
        sums = WeightedSums()
        for numbers, counts in EvaluationBatches(
            Numbers(size), layout(rank, world), batch_size=batch
        ):
            sums.add(step(numbers), counts=counts)
        result = sums.reduce(ranks, sums.layout())
    n = range(size)
    value = [i * 7 % 5 for i in n]
    expected = {"value": sum(value) / size}
    expected["ratio"] = (
        sum(v * i for v, i in zip(value, n, strict=True)) / sum(n) if sum(n) else math.nan
    )
    for c in range(4):
        mine = [value[i] for i in n if i % 4 == c]
        expected[f"per_class/{c}"] = sum(mine) / len(mine) if mine else math.nan
        expected |= {f"table/{c}/{d}": sum(i % 4 == c and i % 3 == d for i in n) for d in range(3)}
    assert {k: repr(float(v)) for k, v in result.items()} == {
        k: repr(float(v)) for k, v in expected.items()
    }


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
