"""Checksums of copies, and which of them is told apart."""

from __future__ import annotations

import pytest
import torch

from trainer.checks.replicas import _sum, first_difference


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
