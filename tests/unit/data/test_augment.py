"""Augmentation belongs to the sample, whatever the layout and the number of workers."""

from __future__ import annotations

import torch
from layouts import layout

from trainer.data.indexed import IndexedData


def test_an_augmentation_that_changes_its_item_leaves_the_data_set_as_it_was() -> None:
    rows = [torch.zeros(2) for _ in range(5)]
    data = IndexedData(
        rows,
        layout(0, 1, 5),
        seed=0,
        augment=lambda item, generator: item.add_(torch.rand(2, generator=generator)),
    )
    first, second = (window.micros[0].batch for window in data.windows(0, 2))
    assert first.any() and second.any()
    assert not any(row.any() for row in rows)
