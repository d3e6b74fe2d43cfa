"""What of a training each rank writes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from trainer.checkpoint.parts import assign_writers
from trainer.strategies.base import Shard


def shards_of(copy: int, copies: int) -> Iterator[Shard]:
    for name, numel in (("a", 12), ("b", 0), ("c", 30)):
        yield Shard(
            name=name,
            start=0,
            tensor=torch.zeros(numel),
            copy=copy,
            copies=copies,
        )


@pytest.mark.parametrize("copies", [1, 2, 3, 5])
def test_ranks_that_hold_the_same_write_equal_parts_of_it(copies: int) -> None:
    written: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for copy in range(copies):
        count = 0
        for shard, low, high in assign_writers(shards_of(copy, copies)):
            written[shard.name] += range(low, high)
            count += high - low
        assert abs(count - 42 / copies) < 1, "each rank writes its share"
    assert written == {"a": [*range(12)], "b": [], "c": [*range(30)]}, "each element once"
