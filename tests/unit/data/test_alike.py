"""Whether all ranks read the same stream."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from layouts import layout

from trainer.data.alike import blocks, digest, held_alike
from trainer.data.evaluation import EvaluationBatches
from trainer.data.stream import StreamData
from trainer.errors import DataError


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(3), torch.ones(3)),
        (torch.zeros(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)),
        ({"x": [np.arange(3)]}, {"x": [np.arange(1, 4)]}),
        ({"x": 1}, {"y": 1}),
        ("café", "cafe"),
        ((1, "a"), ("a", 1)),
        (b"\xff", b"\x00"),
        (1.5, 2.5),
        (torch.tensor(1j).conj(), torch.tensor(2j).conj()),
        (np.array(["a", 1], dtype=object), np.array(["a", 2], dtype=object)),
    ],
)
def test_items_that_differ_have_another_digest(one: Any, other: Any) -> None:
    assert digest(one) != digest(other) and digest(one) == digest(one)


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support is in beta", "ignore:The PyTorch API of nested tensors"
)
@pytest.mark.parametrize(
    "kind",
    [
        torch.Tensor.to_sparse,
        torch.Tensor.to_sparse_csr,
        lambda rows: torch.nested.nested_tensor([rows]),
    ],
)
def test_sparse_and_nested_tensors_differ_by_their_values(kind: Any) -> None:
    one, other = kind(torch.eye(3)), kind(2 * torch.eye(3))
    assert digest(one) != digest(other) and digest(one) == digest(kind(torch.eye(3)))


def test_what_is_no_value_does_not_count() -> None:
    """An object's address would differ on every rank; the tensor beside it is what counts."""
    one, other = ({"x": torch.ones(2), "made_by": object(), "set": {"a", "b"}} for _ in range(2))
    assert digest(one) == digest(other) and digest(torch.empty(0)) == digest(torch.empty(0))
    texts = (
        np.array(["".join(["a", "b"]), [1]], dtype=object) for _ in range(2)
    )  # each at addresses of its own
    assert len({digest(text) for text in texts}) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_divides_itself_is_refused_before_the_first_step(workers: int) -> None:
    class Stream:
        def __init__(self, items: list[int]) -> None:
            self.items = items

        def __iter__(self) -> Any:
            return map(torch.tensor, self.items)

    def windows(items: list[int]) -> Any:
        return StreamData(Stream(items), layout(0, 2, 2), seed=0, workers=workers).windows(0, 3)

    whole, mine = [*range(12)], [*range(0, 12, 2)]
    [first, *_] = windows(whole)
    assert first.read
    assert [
        window.samples for window in held_alike(windows(whole), lambda read: [read, first.read])
    ] == [4, 4, 4]
    assert [window.read for window in windows(whole)] == [first.read, 0, 0]
    [odd, *_] = windows([*range(1, 12, 2)])
    with pytest.raises(
        DataError,
        match=r"^rank 1: Data\.train begins with other samples than on rank 0\. Every rank",
    ):
        next(held_alike(windows(mine), lambda read: [read, odd.read]))


class Drawing:
    """A stream as plain scripts have it: an order from Python's generator, and noise from torch's
    and numpy's.
    """

    def __iter__(self) -> Iterator[torch.Tensor]:
        order = [*range(12)]
        random.shuffle(order)
        for number in order:
            yield torch.tensor(
                [number, float(torch.rand(())), float(np.random.random())], dtype=torch.float64
            )


def read(data: StreamData, steps: int, position: int = 0) -> list[torch.Tensor]:
    windows = data.windows(position, steps)
    return [
        torch.cat([micro.batch for micro in window.micros if micro.weight]) for window in windows
    ]


def test_what_a_stream_draws_is_the_same_on_every_rank_and_in_a_run_that_goes_on() -> None:
    [whole] = [torch.stack(read(StreamData(Drawing(), layout(0, 1, 4), seed=3), 6))]
    parts = []
    for rank, workers in ((0, 0), (1, 1)):
        torch.manual_seed(rank), np.random.seed(rank), random.seed(rank)
        state = torch.get_rng_state(), random.getstate(), np.random.random()
        np.random.seed(rank)
        data = StreamData(Drawing(), layout(rank, 2, 2), seed=3, workers=workers)
        first = read(data, 2)
        again = StreamData(Drawing(), layout(rank, 2, 2), seed=3, workers=workers)
        parts.append(torch.stack(first + read(again, 4, again.restore(data.state()))))
        assert torch.equal(torch.get_rng_state(), state[0]) and random.getstate() == state[1]
        assert np.random.random() == state[2], "the process itself draws as if there were no stream"
    assert torch.equal(torch.cat(parts, dim=1), whole)
    for epoch in (whole[:3], whole[3:]):
        assert sorted(epoch[..., 0].flatten().tolist()) == [*range(12)]
    assert (
        not torch.equal(whole[:3, :, 0], whole[3:, :, 0])
        and len(set(whole[..., 1].flatten().tolist())) == 24
    )
    other = torch.stack(read(StreamData(Drawing(), layout(0, 1, 4), seed=4), 3))
    assert not torch.equal(other, whole[:3])


def test_samples_that_are_read_over_are_drawn_as_they_were() -> None:
    whole = [torch.stack(block) for block in blocks(Drawing(), 4, 7)]
    [_, *rest] = whole
    again = [torch.stack(block) for block in blocks(Drawing(), 4, 7, stop=4)]
    assert all(torch.equal(*pair) for pair in zip(again[1:], rest, strict=True))
    assert [len(block) for block in blocks(Drawing(), 4, 7, stop=5)] == [4, 1, 4, 3]
    assert [len(block) for block in blocks(Drawing(), 4, 7, stop=13)] == [4, 4, 4]


def test_an_evaluation_stream_that_divides_itself_is_refused() -> None:
    gathered: list[int] = []

    def gather(number: int) -> list[int]:
        gathered.append(number)
        return gathered

    mine = [[torch.tensor(number) for number in range(rank, 8, 2)] for rank in range(2)]
    batches = [
        EvaluationBatches(map(lambda x: x, part), layout(), batch_size=2, gather=gather)
        for part in mine
    ]
    assert len([*batches[0]]) == 2
    with pytest.raises(
        DataError, match=r"^rank 1: Data\.evaluation begins with other samples than on rank 0"
    ):
        next(iter(batches[1]))
    twice = EvaluationBatches(Drawing(), layout(), batch_size=5)
    assert torch.equal(*(torch.cat([batch for batch, _ in twice]) for _ in range(2))), (
        "the same each time"
    )
