"""How a global batch is cut, padding batches, and what is a data set or a stream."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from datasets import IterableDataset as HuggingFaceStream
from layouts import layout

from trainer.data import batches
from trainer.data.batches import (
    Layout,
    examples_in,
    parts_of_rank,
    size_of,
)
from trainer.data.indexed import IndexedData
from trainer.errors import DataError


def test_the_example_of_the_module_is_true() -> None:
    found = doctest.testmod(batches)
    assert found.attempted > 0
    assert found.failed == 0


# Cutting


# Data sets and streams


class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from map(torch.tensor, range(self.size))


def rows(size: int) -> Iterator[dict[str, int]]:
    yield from ({"x": i} for i in range(size))


def test_a_loader_in_place_of_a_data_set_is_refused() -> None:
    with pytest.raises(DataError, match=r"a DataLoader: give its \.dataset"):
        size_of(torch.utils.data.DataLoader(Stream(4), batch_size=2), "Data.train")


def test_what_a_stream_is() -> None:
    class Sized(Stream):
        def __len__(self) -> int:
            return self.size

    hugging_face = HuggingFaceStream.from_generator(rows, gen_kwargs={"size": 1})
    for stream in (Stream(1), Sized(1), rows(1), hugging_face):
        assert size_of(stream, "Data.train") is None
    for dataset, size in (([1], 1), (torch.ones(3), 3), ({0: "by number"}, 1)):
        assert size_of(dataset, "Data.train") == size


@pytest.mark.parametrize(
    ("dataset", "told"),
    [(object(), "is a object, without length and indexing"), ([], "is empty")],
)
def test_what_is_no_data_set_is_refused(dataset: object, told: str) -> None:
    with pytest.raises(DataError, match=f"^Data.train {told}$"):
        size_of(dataset, "Data.train")


def of(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("batch", "examples"),
    [
        ({"x": of(3, 8), "y": of(3)}, 3),
        ({"x": of(0, 8)}, 0),
        ({"x": of(4, 8), "edges": of(2, 5)}, 4),  # a tensor of another length beside the examples
        ({"nodes": of(3, 8), "edges": of(2, 5)}, 4),  # not to be told
        ({"views": of(8, 8)}, 4),  # two views of each sample
        # time first, as pad_sequence gives
        ([of(3, 4), of(3)], 3),  # four features
        ({"tokens": of(3), "text": ["a", "b", "c", "d"]}, 4),
        # a list of images
        ({"images": [of(3, 8, 8)] * 4, "n": 3}, 4),
        ("no tensor", 4),
    ],
)
def test_the_examples_that_a_collate_has_left_of_four_samples(batch: Any, examples: int) -> None:
    assert examples_in(batch, 4) == examples


def test_a_batch_weighs_as_many_examples_as_its_collate_has_left() -> None:
    def odd(items: Any) -> torch.Tensor:
        return torch.stack([torch.tensor(float(number)) for number in items if number % 2])

    [window] = IndexedData(range(8), layout(micro=8), seed=0, collate=odd).windows(0, 1)
    assert window.weight == 4 and not window.micros[0].batch.eq(0).any()
    data = IndexedData([2, 4, 5, 6], layout(micro=2), seed=0, collate=odd)
    data.choose_padding_item(iter([2, 4, 5, 6]))
    padding = data.micro_batch(2, odd([5])[:0])
    assert padding.weight == 0 and padding.batch.tolist() == [5.0, 5.0]


@pytest.mark.parametrize("samples", [1, 7, 23, 24])
def test_whole_micro_batches_are_the_same_on_every_layout(samples: int) -> None:
    """The last, short step of an epoch too: rank and number say which is which."""
    alone = [range(start, min(start + 2, samples)) for start in range(0, samples, 2)]
    for world in (1, 2, 3, 4):
        dealt = {}
        for rank in range(world):
            cut = Layout(
                rank=rank,
                world_size=world,
                micro_batch_size=2,
                accumulation_steps=12 // world,
                whole_micro_batches=True,
            )
            for number, part in enumerate(parts_of_rank(range(samples), cut)):
                dealt[number * world + rank] = part
        assert [dealt[number] for number in sorted(dealt) if dealt[number]] == alone
