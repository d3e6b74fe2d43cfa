"""Checksums of copies, and which of them is told apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_run import TwoRanks, fake_run, step_info
from read_backs import ReadBacks
from torch import nn

from trainer.checks.replicas import ReplicaCheck, _read_back, _sum, first_difference
from trainer.errors import TrainerError


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.complex64]
)
@pytest.mark.parametrize("count", [1, 3, 8, 1001])
def test_every_single_flipped_bit_changes_the_checksum(dtype: torch.dtype, count: int) -> None:
    values = torch.arange(1, count + 1).to(dtype)
    before = _sum(values).item()
    content = values.view(torch.uint8)
    for byte in {0, len(content) // 2, len(content) - 1}:
        for bit in range(8):
            content[byte] ^= 1 << bit
            assert _sum(values).item() != before
            content[byte] ^= 1 << bit
    assert _sum(values).item() == before


def test_the_checksum_does_not_depend_on_where_the_values_lie() -> None:
    buffer = torch.randn(20)
    parts = [buffer[start : start + 7] for start in range(8)]
    assert [_sum(part).item() for part in parts] == [_sum(part.clone()).item() for part in parts]
    matrix = torch.randn(5, 7)
    assert _sum(matrix.t()).item() == _sum(matrix.t().contiguous()).item()


def test_all_checksums_are_read_back_together() -> None:
    sums = {(name, 0): _sum(torch.full((3,), float(place))) for place, name in enumerate("abc")}
    with ReadBacks() as seen:
        found = _read_back(sums)
    assert seen.count == 0
    assert found == {key: int(total) for key, total in sums.items()}
    assert list(found) == list(sums) and _read_back({}) == {}


def test_the_rarer_copy_is_the_one_to_look_at() -> None:
    equal = {("a", 0): 1, ("b", 0): 2}
    other = {("a", 0): 1, ("b", 0): 3}
    assert first_difference([equal] * 4) == ("", [])
    assert first_difference([equal, equal, other, equal]) == ("b", [2])
    assert first_difference([equal, other]) == ("b", [0, 1]), "nobody can tell"
    assert first_difference([equal, equal, other, other]) == ("b", [0, 1, 2, 3])


def test_parts_are_compared_with_copies_of_the_same_part_only() -> None:
    ranks = [{("a", 0): 1}, {("a", 8): 2}, {("a", 0): 1}, {("a", 8): 5}, {}]
    assert first_difference(ranks) == ("a", [1, 3])


class Replicated:
    """A strategy under which every rank has the whole model."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 1)

    def parameters(self, *, trainable: bool | None) -> Any:
        return self.model.named_parameters()

    def shards(self, *, trainable: bool | None) -> Any:
        return ()


def flipped(value: Any) -> Any:
    """What a rank gives whose bias is another one."""
    _, sums = value
    return "machine-b", {**sums, ("bias", 0): sums["bias", 0] + 1}


def test_copies_are_compared_every_few_steps_and_once_before_a_save() -> None:
    ranks = TwoRanks()
    run, check = fake_run(agreement=ranks, strategy=Replicated(), step=0), ReplicaCheck(4)
    for run.step in range(1, 9):
        check.on_step(run, step_info(run.step))
    assert ranks.sent == 2
    check.on_save(run)
    assert ranks.sent == 2, "compared at this very step already"
    run.step = 9
    check.on_save(run)
    assert ranks.sent == 3


def test_a_copy_that_differs_is_named_with_its_machine_and_the_last_equal_step() -> None:
    ranks = TwoRanks()
    run, check = fake_run(agreement=ranks, strategy=Replicated(), step=4), ReplicaCheck(4)
    check.on_step(run, step_info(4))
    ranks.other = flipped
    run.step = 8
    with pytest.raises(TrainerError) as error:
        check.on_step(run, step_info(8))
    line = str(error.value)
    assert line.startswith("step 8: the copies of bias are not the same bits on all ranks")
    assert "which they were at step 4" in line and "rank 1 (machine-b)" in line
