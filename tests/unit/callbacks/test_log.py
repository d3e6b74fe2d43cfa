"""The numbers of a logged step, of which each rank has a part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from one_process import fit, rows
from torch import nn

from trainer.errors import DataError
from trainer.metrics import WeightedSums


@dataclass(frozen=True, kw_only=True)
class Reports(Plain):
    """Reports a number beside the loss."""

    name: str

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return super().training_step(model, batch), {self.name: 9.0}


def test_the_first_step_every_nth_and_the_last_are_logged(tmp_path: Path) -> None:
    fit(tmp_path, Reports(name="loss"), max_steps=10, log_every=4, save_every=None)
    logged = [row for row in rows(tmp_path) if "loss" in row]
    assert [row["step"] for row in logged] == [1, 4, 8, 10]
    assert not any(row["loss"] == 9.0 for row in logged), "a reported loss does not replace it"


@pytest.mark.parametrize("name", ["lr", "grad_norm", "eta_seconds"])
def test_a_name_of_the_trainers_own_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^training_step reports '{name}', a name of the trainer"):
        fit(tmp_path, Reports(name=name))


def sums(**values: tuple[float, float]) -> WeightedSums:
    """Return the values that a rank reports: sums and weights by name."""
    found = WeightedSums()
    found.add({name: (torch.tensor(total), weight) for name, (total, weight) in values.items()})
    return found
