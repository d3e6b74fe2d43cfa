"""A few samples of a data set: which, their fields, and that reading them has no side effects."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from layouts import layout
from PIL import Image

from trainer.data.batches import size_of
from trainer.data.digest import digest
from trainer.data.indexed import IndexedData
from trainer.data.samples import BATCH, CONTENT, Sampled, SampledSet
from trainer.data.stream import StreamData


def read(dataset: Any, **more: Any) -> Any:
    return {name: text for name, text, _ in set_of(dataset, **more).read()}


def set_of(dataset: Any, **more: Any) -> SampledSet:
    kind = StreamData if size_of(dataset, "Data.train") is None else IndexedData
    return SampledSet("Data.train", kind(dataset, layout(), seed=0, **more))


@pytest.mark.parametrize("size", [1, 2, 5, 16, 1000])
def test_samples_from_the_first_to_the_last_are_read(size: int) -> None:
    names = [name for name in read(torch.arange(size)) if name.startswith(CONTENT)]
    numbers = [int(name.split()[4]) for name in names]
    assert numbers[0] == 0 and numbers[-1] == size - 1 and len(numbers) == min(size, 3)


@dataclass
class Point:
    x: Any
    made_by: object


def test_the_content_of_objects_counts_and_not_their_addresses() -> None:
    one, other, third = (Point(torch.tensor([value]), object()) for value in (1, 1, 2))
    assert digest(one) == digest(other) != digest(third)
    assert digest(Image.new("RGB", (2, 2), "red")) != digest(Image.new("RGB", (2, 2), "blue"))


class Drawing:
    """Draws from all global generators, and says which process has read it."""

    readers: set[int]

    def __init__(self) -> None:
        self.readers = set()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.readers.add(os.getpid())
        return {
            "i": index,
            "drawn": random.random() + float(torch.rand(())) + float(np.random.random()),
        }


def test_generators_are_as_they_were_and_draw_the_same_in_any_process() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[union-attr,index]
    first = read(Drawing())
    assert random.getstate() == before[0] and np.random.get_state()[1].tolist() == before[1]  # type: ignore[union-attr,index]
    assert torch.equal(torch.get_rng_state(), before[2])
    random.seed(2), np.random.seed(2), torch.manual_seed(2)
    assert read(Drawing()) == first


def test_with_workers_the_process_itself_reads_nothing() -> None:
    """What a data set opens at its first read (HDF5) must not be open when loading processes are
    forked.
    """
    dataset = Drawing()
    before = torch.get_rng_state()
    content = read(dataset, workers=2)
    assert not dataset.readers and content == read(Drawing())
    assert torch.equal(torch.get_rng_state(), before)


def test_augmentation_and_collate_count_and_change_nothing() -> None:
    rows = [torch.zeros(2) for _ in range(20)]
    augmented = read(
        rows, augment=lambda item, generator: item.add_(torch.rand(2, generator=generator))
    )
    for name, plain in read(rows).items():
        assert (plain != augmented[name]) == name.startswith(BATCH)
    assert all(not row.any() for row in rows), "copies were augmented"


def test_a_stream_is_not_read() -> None:
    stream = iter([1, 2, 3])
    assert read(stream) == {"the kind of Data.train": "a stream"} and next(stream) == 1


class Counting:
    """Data whose samples change each time that they are read, or whose content was replaced."""

    def __init__(self, *, first: int = 0, changes: bool = False) -> None:
        self.first, self.changes = first, changes

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        self.first += self.changes
        return self.first + index


def sampled(dataset: Any) -> Sampled:
    return Sampled([set_of(dataset)], lambda value: [value])


def test_another_content_of_the_same_size_is_told_on_resume() -> None:
    before = sampled(Counting()).state()
    assert sampled(Counting()).changes(before) == []
    [told] = sampled(Counting(first=1)).changes(before)
    assert told.startswith("the data is another one: the content of sample 0 of Data.train, ")
    random_samples = sampled(Counting(changes=True))
    assert random_samples.changes(before) == [], "samples that are random"
    [told] = sampled(Counting()).changes(random_samples.state())
    assert "the content of sample 0 of Data.train" in told, "samples that are random no more"
    assert (
        sampled(Counting(first=1)).changes({**before, "the number of samples of Data.train": "1"})
        == []
    ), "another size"
    # A checkpoint of 2aaecea holds eight samples by other names: nothing is compared.
    assert sampled(Counting(first=1)).changes({"Data.train": {"the number of samples": 1}}) == []
