"""The numbers of a logged step, of which each rank has a part."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from fake_run import fake_run, step_info
from one_process import fit, rows
from torch import Tensor, nn

from trainer.callbacks.log import Log
from trainer.errors import DataError
from trainer.metrics import Layout, WeightedSums, agreed


@dataclass(frozen=True, kw_only=True)
class Reports(Plain):
    """Reports a number beside the loss."""

    name: str

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return super().training_step(model, batch), {self.name: 9.0}


@pytest.mark.usefixtures("fresh_accelerate")
def test_the_first_step_every_nth_and_the_last_are_logged(tmp_path: Path) -> None:
    fit(tmp_path, Reports(name="loss"), max_steps=10, log_every=4, save_every=None)
    logged = [row for row in rows(tmp_path) if "loss" in row]
    assert [row["step"] for row in logged] == [1, 4, 8, 10]
    assert not any(row["loss"] == 9.0 for row in logged), "a reported loss does not replace it"


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("name", ["lr", "grad_norm", "eta_seconds"])
def test_a_name_of_the_trainers_own_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^training_step reports '{name}', a name of the trainer"):
        fit(tmp_path, Reports(name=name))


def sums(**values: tuple[float, float]) -> WeightedSums:
    """Return the values that a rank reports: sums and weights by name."""
    found = WeightedSums()
    found.add({name: (torch.tensor(total), weight) for name, (total, weight) in values.items()})
    return found


class OtherRank:
    """Rank 1 of two, as seen by rank 0: its loss is 2, and it reports ``reported``."""

    device = torch.device("cpu")

    def __init__(self, reported: WeightedSums) -> None:
        self.reported = reported
        self.known: Layout = {}
        self.gathers = 0

    def gather(self, mine: Layout) -> list[Layout]:
        self.gathers += 1
        both = [mine, self.reported.layout()]
        self.known = agreed(both)
        return both

    def reduce(self, packed: Tensor, how: str) -> Tensor:
        assert how == "sum"
        if packed.ndim == 1:
            changed = self.reported.layout() != self.known
            return packed + torch.tensor([2.0, float(changed)])
        columns = [self.reported._sums.get(key, torch.zeros(2)) for key in self.known]
        return packed + torch.stack(columns, dim=1)

    def read(self, steps_left: int) -> dict[str, float]:
        return {}


def test_names_that_one_rank_reports_are_shown_and_exchanged_only_if_they_have_changed() -> None:
    other = OtherRank(sums(accuracy=(1.0, 4.0)))
    run = fake_run(
        agreement=other,
        accelerator=other,
        meter=other,
        rates=[0.1],
        facts={"optimizer_groups": [{}]},
        skipped_steps=0,
        last_step=10,
        step=4,
    )
    log = Log(1)
    assert log.measure(run, step_info())["accuracy"] == 0.25, "of a rank that reports nothing too"
    for _ in range(3):
        metrics = log.measure(run, step_info(reported=sums(accuracy=(3.0, 4.0))))
        assert (metrics["accuracy"], metrics["loss"]) == (0.5, 3.0), "over all ranks"
    assert other.gathers == 1
    more = sums(accuracy=(3.0, 4.0), more=(1.0, 1.0))
    assert log.measure(run, step_info(reported=more))["more"] == 1.0
    assert other.gathers == 2
