"""Whether all ranks read the same stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from layouts import layout

from trainer.data.alike import digest, held_alike
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
    ],
)
def test_items_that_differ_have_another_digest(one: Any, other: Any) -> None:
    assert digest(one) != digest(other) and digest(one) == digest(one)


def test_what_is_no_value_does_not_count() -> None:
    """An object's address would differ on every rank; the tensor beside it is what counts."""
    one, other = ({"x": torch.ones(2), "made_by": object(), "set": {"a", "b"}} for _ in range(2))
    assert digest(one) == digest(other) and digest(torch.empty(0)) == digest(torch.empty(0))


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
    assert [window.samples for window in held_alike(windows(whole), lambda read: [read, first.read])] == [4, 4, 4]
    assert [window.read for window in windows(whole)] == [first.read, 0, 0]
    [odd, *_] = windows([*range(1, 12, 2)])
    with pytest.raises(DataError, match=r"rank 1 began with other samples than rank 0\. Every rank reads the whole"):
        next(held_alike(windows(mine), lambda read: [read, odd.read]))
