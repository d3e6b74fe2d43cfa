"""The numbers of a logged step, of which each rank has a part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_run import fake_run, step_info
from torch import Tensor

from trainer.callbacks.log import Log
from trainer.errors import DataError
from trainer.metrics import Layout, WeightedSums, agreed


def sums(**values: tuple[float, float]) -> WeightedSums:
    """What a rank reports: sums and weights by name."""
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


def run_with(reported: WeightedSums | None = None) -> Any:
    """Return rank 0 of two, of which the other one reports these sums."""
    other = OtherRank(reported or WeightedSums())
    return fake_run(
        agreement=other,
        accelerator=other,
        rates=[0.1],
        facts={"optimizer_groups": [{}]},
        skipped_steps=0,
        meter=SimpleNamespace(read=lambda steps_left: {"eta_seconds": float(steps_left)}),
        total_steps=10,
        last_step=10,
        step=4,
    )


def test_the_first_step_every_nth_and_the_last_are_logged() -> None:
    log, run = Log(4), run_with()
    logged = []
    for step in range(1, 11):
        info = step_info(step, is_last=step == 10)
        log.on_step(run, info)
        if info.metrics is not None:
            logged.append(step)
    assert logged == [1, 4, 8, 10]


def test_the_loss_is_the_sum_of_the_ranks_parts() -> None:
    metrics = Log(1).measure(run_with(), step_info(4, loss=torch.tensor(0.5)))
    assert metrics == {
        "step": 4,
        "epoch": 0.5,
        "samples": 32,
        "loss": 2.5,
        "lr": 0.1,
        "grad_norm": 1.0,
        "skipped_steps": 0,
        "eta_seconds": 6.0,
    }


def test_a_name_that_only_one_rank_reports_is_shown() -> None:
    run = run_with(sums(recall=(1.0, 4.0)))
    metrics = Log(1).measure(run, step_info(reported=sums(accuracy=(3.0, 4.0))))
    assert (metrics["accuracy"], metrics["recall"]) == (0.75, 0.25)


def test_a_rank_that_reports_nothing_still_takes_part() -> None:
    metrics = Log(1).measure(run_with(sums(recall=(1.0, 4.0))), step_info())
    assert metrics["recall"] == 0.25


def test_names_are_exchanged_only_where_they_have_changed() -> None:
    log, run = Log(1), run_with(sums(accuracy=(1.0, 4.0)))
    for _ in range(3):
        log.measure(run, step_info(reported=sums(accuracy=(3.0, 4.0))))
    assert run.agreement.gathers == 1
    metrics = log.measure(run, step_info(reported=sums(accuracy=(3.0, 4.0), more=(1.0, 1.0))))
    assert run.agreement.gathers == 2
    assert (metrics["more"], metrics["accuracy"]) == (1.0, 0.5), "means over all ranks"


def test_a_reported_loss_does_not_replace_the_global_one() -> None:
    run = run_with(sums(loss=(9.0, 1.0)))
    assert Log(1).measure(run, step_info(reported=sums(loss=(9.0, 1.0))))["loss"] == 3.0


@pytest.mark.parametrize("name", ["lr", "grad_norm", "eta_seconds"])
def test_a_name_of_the_trainers_own_is_refused(name: str) -> None:
    same = sums(**{name: (1.0, 1.0)})
    with pytest.raises(DataError, match=f"^training_step reports '{name}', a name of the trainer"):
        Log(1).measure(run_with(same), step_info(reported=same))
