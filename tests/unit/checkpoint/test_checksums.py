"""Checksums of weights."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from trainer.strategies.digests import content_sum


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_checksums_of_parts_add_up_wherever_they_are_cut(dtype: torch.dtype) -> None:
    values = torch.randn(1_200_007).to(dtype)
    whole = content_sum(values, 0, dtype)
    for cuts in ([1], [3, 5, 6], [600_001, 600_002], [0, 1_200_007]):
        ends = [0, *cuts, len(values)]
        parts = (content_sum(values[low:high], low, dtype) for low, high in pairwise(ends))
        assert sum(parts) == whole


def test_a_flipped_bit_and_two_swapped_values_change_the_checksum() -> None:
    bits = torch.arange(64, dtype=torch.int16)
    whole = content_sum(bits.view(torch.bfloat16), 0, torch.bfloat16)
    for bit in range(15):
        bits[11] ^= 1 << bit
        assert content_sum(bits.view(torch.bfloat16), 0, torch.bfloat16) != whole, bit
        bits[11] ^= 1 << bit
    swapped = bits[[1, 0, *range(2, 64)]].view(torch.bfloat16)
    assert content_sum(swapped, 0, torch.bfloat16) != whole
