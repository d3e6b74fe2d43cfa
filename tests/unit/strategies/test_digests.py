"""The digest of a tensor: of parts as of the whole, and other for each other bit."""

from __future__ import annotations

import pytest
import torch

from trainer.strategies.digests import digest


@pytest.mark.parametrize("size", [1, 2, 7, 64, 150_001])
def test_the_digests_of_parts_add_up(size: int) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(0))
    whole = digest(values)
    for parts in (1, 2, 3, 5):
        cut = values.tensor_split(parts)
        starts = [sum(part.numel() for part in cut[:number]) for number in range(parts)]
        assert sum(map(digest, cut, starts)) == whole


def test_each_bit_of_each_element_counts() -> None:
    values = torch.randn(9, generator=torch.Generator().manual_seed(0))
    found = {int(digest(values))}
    for place in range(9):
        for bit in range(32):
            other = values.clone()
            other[place : place + 1].view(torch.int32).bitwise_xor_(
                torch.tensor(1 << bit, dtype=torch.int64).int()
            )
            found.add(int(digest(other)))
    assert len(found) == 1 + 9 * 32
    assert int(digest(values.flip(0))) not in found


def test_16_bits_count_as_in_float32() -> None:
    values = torch.randn(5).bfloat16()
    assert digest(values) == digest(values.float())
    assert digest(torch.zeros(4)) == 0 == digest(torch.zeros(0))
