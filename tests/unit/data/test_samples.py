"""A few samples of a data set: which, their fields, and that reading them has no side effects."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import default_collate

from trainer.data.augment import Items
from trainer.data.digest import digest
from trainer.data.samples import (
    SAMPLES,
    SIZE,
    Sampled,
    SampledSet,
    _first_difference,
    fields_of,
    indices_of,
)


def read(dataset: Any, *, workers: bool = False, **more: Any) -> Any:
    given: dict[str, Any] = {
        "augment": None,
        "collate": default_collate,
        "batch_size": 8,
        "version": "",
        **more,
    }
    items = Items(dataset, seed=0, augment=given.pop("augment"))
    return SampledSet(name="Data.train", items=items, workers=workers, **given).read(draw=0)


@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 1000, 10**12])
def test_first_last_and_some_between_are_chosen(size: int) -> None:
    chosen = indices_of(size)
    assert (
        chosen[0] == 0
        and size - 1 in chosen[:2]
        and len(set(chosen)) == len(chosen) == min(size, SAMPLES)
    )
    assert chosen == indices_of(size)


@dataclass
class Point:
    x: Any
    made_by: object


@pytest.mark.parametrize(
    ("item", "fields"),
    [
        (
            {"y": torch.tensor(3), "t": "cat", "k": None},
            {"'y'": "3", "'t'": "'cat'", "'k'": "NoneType with checksum"},
        ),
        ((torch.ones(2, 3), True), {"part 0": "Tensor 2x3 with checksum", "part 1": "True"}),
        ("x" * 50, {"the value": "str with checksum"}),
        ([*range(9)], {"the value": "list with checksum"}),
        (np.float32(0.5), {"the value": "0.5"}),
        (Image.new("RGB", (2, 2), "red"), {"the value": "Image with checksum"}),
        (Point(torch.ones(2), object()), {"the value": "Point with checksum"}),
    ],
)
def test_the_fields_of_an_item(item: Any, fields: dict[str, str]) -> None:
    found = fields_of(item)
    assert found.keys() == fields.keys()
    assert all(found[name].startswith(text) for name, text in fields.items())


def test_the_content_of_objects_counts_and_not_their_addresses() -> None:
    one, other, third = (Point(torch.tensor([value]), object()) for value in (1, 1, 2))
    assert digest(one) == digest(other) != digest(third)
    texts = [f"name-{number}" for number in range(20)]
    assert digest(set(texts)) == digest(set(reversed(texts))) != digest(set(texts[1:]))
    assert fields_of(Image.new("RGB", (2, 2), "red")) != fields_of(Image.new("RGB", (2, 2), "blue"))


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
    content = read(dataset, workers=True)
    assert not dataset.readers and content == read(Drawing())
    assert torch.equal(torch.get_rng_state(), before)


def test_augmentation_and_collate_count_and_change_nothing() -> None:
    rows = [torch.zeros(2) for _ in range(20)]
    plain = read(rows)
    augmented = read(
        rows, augment=lambda item, generator: item.add_(torch.rand(2, generator=generator))
    )
    assert plain["samples of Data.train"] == augmented["samples of Data.train"]
    assert plain["batches of Data.train"] != augmented["batches of Data.train"]
    assert all(not row.any() for row in rows), "copies were augmented"


def test_slow_samples_are_read_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.samples.SECONDS", -1.0)
    content = read([*range(100)])
    assert [*content["samples of Data.train"]] == [
        f"sample {number} of Data.train" for number in indices_of(100)[:4]
    ]
    whole = {"samples of Data.train": {"sample 0 of Data.train": {"the value": "0"}}}
    assert _first_difference([content, whole], frozenset()) is None, (
        "what one rank alone has read is not compared"
    )


def test_the_first_difference_names_rank_and_values() -> None:
    one, other = ({"samples": {"sample 0": {"x": "1", "y": value}}} for value in ("2", "3"))
    assert _first_difference([one, one, other], frozenset()) == (2, "y of sample 0", "3", "2")
    assert _first_difference([one, other], frozenset({("samples", "y")})) is None
    less: Any = {"samples": {"sample 0": {"x": "1"}}}
    assert _first_difference([one, less], frozenset()) == (1, "y of sample 0", "missing", "2")


def test_a_stream_is_not_read() -> None:
    stream = iter([1, 2, 3])
    assert (
        read(stream) == {"sets": {"Data.train": {SIZE: "that of a stream"}}} and next(stream) == 1
    )
    assert read(None) == {"sets": {"Data.train": {SIZE: "0"}}}


def test_without_sets_nothing_is_read_or_compared() -> None:
    nothing = Sampled([], lambda value: [value])
    nothing.check_same_on_all_ranks()
    assert nothing.state() == {} and nothing.changes({"Data.train": {SIZE: 1}}) == []
