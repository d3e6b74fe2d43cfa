"""Check that all ranks read the same stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from layouts import layout

from trainer.data.evaluation import EvaluationBatches
from trainer.errors import DataError


class OwnPart:
    """A stream that yields every second number, from that of its rank on."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from map(torch.tensor, range(self.rank, 8, 2))


def test_an_evaluation_stream_that_divides_itself_is_refused() -> None:
    gathered: list[int] = []

    def gather(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [dict.fromkeys(value, "of rank 0"), value]
        gathered.append(value)
        return gathered

    of_ranks = []
    for rank in range(2):
        part = OwnPart(rank)
        of_ranks.append(EvaluationBatches(part, layout(), batch_size=2, gather=gather))
    assert len([*of_ranks[0]]) == 2
    with pytest.raises(DataError, match=r"^rank 1: the beginning of Data\.evaluation, .* rank 0: "):
        next(iter(of_ranks[1]))
