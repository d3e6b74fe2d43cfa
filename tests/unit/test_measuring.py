"""The values of evaluation sets: which sets, of one over all batches, and the newest of all."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layouts import Numbers, layout
from torch import Tensor, nn

from trainer import Data, EvaluationSet, Task
from trainer.building.evaluation import MeasuredSet, measured_sets
from trainer.errors import DataError
from trainer.measuring import Measurement, chosen_sets, newest_values


class Ones(Task):
    """The mean of what the batches hold, by the default evaluation and by another step."""

    def build_model(self) -> nn.Module:
        return nn.Identity()

    def build_data(self) -> Data:
        return Data(train=Numbers(8))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return batch.mean()

    def doubled(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        return {"doubled": 2 * batch}

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        return {**metrics, "count": len(metrics)}


def sets_of(task: Ones) -> dict[str, MeasuredSet]:
    own = EvaluationSet(Numbers(5), evaluation_step=task.doubled)
    data = Data(train=Numbers(8), evaluation={"clean": Numbers(5), "noisy": own})
    return measured_sets(task, data, layout(), batch_size=2)


def measurement_of(task: Ones, chosen: MeasuredSet) -> Measurement:
    """A measurement on one process."""
    accelerator = SimpleNamespace(
        device=torch.device("cpu"), reduce=lambda tensor, reduction: tensor
    )
    strategy: Any = SimpleNamespace(
        accelerator=accelerator, model=nn.Identity(), to_device=lambda batch: batch
    )
    agreement: Any = SimpleNamespace(gather=lambda value: [value])
    return Measurement(task, strategy, agreement, chosen)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("clean", {"eval/clean/loss": 4.0, "eval/clean/count": 1.0}),
        ("noisy", {"eval/noisy/doubled": 8.0, "eval/noisy/count": 1.0}),
    ],
)
@torch.no_grad()
def test_the_mean_of_a_set_is_over_examples_and_not_over_batches(
    name: str, expected: dict[str, float]
) -> None:
    task = Ones()
    measurement = measurement_of(task, sets_of(task)[name])
    measurement.add(torch.tensor([1.0, 2.0, 6.0]), examples=3)
    measurement.add(torch.tensor([7.0]), examples=1)
    measurement.add(torch.tensor([float("nan")]), examples=0)
    assert measurement.values() == expected


def test_sets_are_chosen_by_name_in_the_order_of_the_data() -> None:
    sets = sets_of(Ones())
    assert chosen_sets(sets, None) == [sets["clean"], sets["noisy"]]
    assert chosen_sets(sets, ["noisy", "clean"]) == [sets["clean"], sets["noisy"]]
    assert chosen_sets(sets, "noisy") == [sets["noisy"]]
    with pytest.raises(DataError, match=r"no set 'claen'; did you mean 'clean'\?"):
        chosen_sets(sets, ["claen"])
    with pytest.raises(DataError, match=r"Data\.evaluation is None"):
        chosen_sets({}, None)


def test_the_newest_values_of_a_set_are_all_of_one_evaluation() -> None:
    before = {"eval/noisy/loss": 3.0, "eval/clean/old": 1.0, "eval/gone/loss": 2.0}
    newest = newest_values(sets_of(Ones()), {"clean": {"eval/clean/loss": 0.5}}, before)
    assert list(newest.items()) == [("eval/clean/loss", 0.5), ("eval/noisy/loss", 3.0)]
