"""Streams in blocks: the same draws, also where the first samples are read over."""

from __future__ import annotations

import torch
from layouts import DrawingStream

from trainer.data.blocks import blocks


def read(*, seed: int = 7, stop: int = 0) -> list[torch.Tensor]:
    return [torch.stack(block) for block in blocks(DrawingStream(), 4, seed, stop=stop)]


def test_a_block_ends_where_the_resumed_run_began_one() -> None:
    assert [len(block) for block in read(stop=5)] == [4, 1, 4, 3]
    assert [len(block) for block in read(stop=13)] == [4, 4, 4]


def test_a_block_draws_the_same_whatever_was_read_before() -> None:
    noise = (torch.rand(1) for _ in range(12))
    [_, second, _] = [torch.cat(block) for block in blocks(noise, 4, 7)]

    noise = (torch.rand(1) for _ in range(8))
    [resumed, _] = [torch.cat(block) for block in blocks(noise, 4, 7, offset=4)]
    assert torch.equal(resumed, second)
