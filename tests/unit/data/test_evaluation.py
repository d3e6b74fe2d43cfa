"""Every sample is evaluated once."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from layouts import DrawingStream, Numbers, layout

from trainer.data.evaluation import EvaluationBatches
from trainer.errors import DataError


class Count(torch.utils.data.IterableDataset[torch.Tensor]):
    """A stream of 0 ... size - 1."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from map(torch.tensor, range(self.size))


@pytest.mark.parametrize("stream", [Count(0), iter([{"x": 1}, {"x": 2}])])
def test_a_stream_that_is_empty_or_can_be_read_only_once_is_refused(stream: Any) -> None:
    with pytest.raises(
        DataError, match=r"^Data.evaluation is an empty stream, or can be read only once: give an"
    ):
        list(EvaluationBatches(stream, layout(), batch_size=2))


class Drawing(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [random.random(), float(np.random.random()), float(torch.rand(()))]
        return torch.tensor([index, os.getpid(), *drawn], dtype=torch.float64)


def test_workers_stay_from_one_evaluation_to_the_next_and_draw_the_same_in_each() -> None:
    batches = EvaluationBatches(Drawing(), layout(), batch_size=2, workers=2)
    first, second = (torch.cat([batch for batch, _ in batches]) for _ in range(2))
    assert torch.equal(first, second), "order, processes and what they draw"
    assert first[:, 0].tolist() == list(range(12)) and len(set(first[:, 1].tolist())) == 2
    assert len(set(first[:, 2].tolist())) == 12, "no two batches draw alike"
    resumed = EvaluationBatches(
        Drawing(), layout(), batch_size=2, workers=1
    )  # another run, with other processes
    assert torch.equal(torch.cat([batch for batch, _ in resumed])[:, 2:], first[:, 2:])
    other = EvaluationBatches(Drawing(), layout(1, 2), batch_size=2, workers=1)
    assert not set(torch.cat([batch for batch, _ in other])[:, 2].tolist()) & set(
        first[:, 2].tolist()
    )
    for one in (batches, resumed, other):
        one.close()
    assert not [pid for pid in set(first[:, 1].tolist()) if psutil.pid_exists(int(pid))]
    assert torch.equal(torch.cat([batch for batch, _ in batches])[:, 2:], first[:, 2:]), (
        "and may begin again"
    )
    batches.close()


def test_an_evaluation_left_half_way_does_not_spoil_the_next() -> None:
    batches = EvaluationBatches(Drawing(), layout(), batch_size=2, workers=2)
    next(iter(batches))
    assert [int(i) for batch, _ in batches for i in batch[:, 0]] == list(range(12))
    batches.close()


class InPlace(Drawing):
    """Keeps its items, which the collate below changes."""

    def __init__(self) -> None:
        self.items = [{"x": [at]} for at in range(12)]

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def taking(items: list[Any]) -> list[int]:
    return [item["x"].pop() for item in items]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("rank", "expected"), [(0, ([0, 1], 2)), (1, ([2, 3], 2))])
def test_the_first_batch_is_that_of_an_evaluation_and_costs_it_nothing(
    workers: int, rank: int, expected: tuple[list[int], int]
) -> None:
    batches = EvaluationBatches(
        InPlace(), layout(rank, 2), batch_size=2, collate=taking, workers=workers
    )
    assert batches.first() == expected == batches.first()
    assert next(iter(batches)) == expected
    batches.close()


def test_a_rank_without_a_sample_gets_a_padding_batch_first() -> None:
    of_ranks = []
    for rank in range(3):
        batch, examples = EvaluationBatches(Numbers(2), layout(rank, 3), batch_size=2).first()
        of_ranks.append((batch.tolist(), examples))
    assert of_ranks == [([0], 0), ([0], 1), ([1], 1)]


class Going(Count):
    """A stream that goes on where it was left; its state can be set."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.at = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at < self.size:
            self.at += 1
            yield torch.tensor(self.at - 1)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("stream", [Count(5), Going(5)], ids=["anew", "state"])
def test_reading_the_first_block_of_a_stream_does_not_disturb_the_evaluation(stream: Any) -> None:
    batches = EvaluationBatches(stream, layout(), batch_size=2)
    for _ in range(2):
        batch, examples = batches.first()
        assert (batch.tolist(), examples) == ([0, 1], 2)
    assert [batch.tolist() for batch, _ in batches] == [[0, 1], [2, 3], [4]]


def test_a_stream_draws_the_same_in_each_evaluation() -> None:
    batches = EvaluationBatches(DrawingStream(), layout(), batch_size=5)
    first, second = (torch.cat([batch for batch, _ in batches]) for _ in range(2))
    assert torch.equal(first, second)


def test_batches_for_a_gpu_are_pinned() -> None:
    batches = EvaluationBatches(Numbers(5), layout(), batch_size=2, pin_memory=True)
    with pytest.warns(UserWarning, match="'pin_memory' argument is set as true but no accelerator"):
        assert len(list(batches)) == 3
